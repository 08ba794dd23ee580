// The GPU that the tests run on.
#pragma once
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <memory>

#include "backends/cuda/device.h"
#include "backends/cuda/queue.h"
#include "gpu/mutant.h"
#include "harness/count_from.h"

namespace sluice::test {

// Opens a new device. SLUICE_MUTANT names a library whose kernel replaces the kernel of the same name (gpu/mutant.h).
inline Result<std::unique_ptr<Device>> open_gpu() {
  auto opened = cuda::open_device({});
  const char* mutant = std::getenv("SLUICE_MUTANT");
  if (!opened.ok() || !mutant) return opened;
  return MutatedDevice::make(std::move(opened).value(), mutant);
}

// Names typed tests by their operation.
struct OpNames {
  template <class Op>
  static std::string GetName(int) {
    return std::string(Op::kName);
  }
};

// A test on a GPU. Without a GPU it is skipped, or it fails if SLUICE_NEED_GPU is set.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_gpu();
    if (opened.ok()) {
      device_ = std::move(opened).value();
    } else if (std::getenv("SLUICE_NEED_GPU")) {
      FAIL() << opened.status().message;
    } else {
      GTEST_SKIP() << opened.status().message;
    }
  }
  Device& gpu() { return *device_; }
  Stream stream() { return device_->stream(); }
  cudaStream_t native() { return cuda::queue_of(stream()).stream; }

 private:
  std::unique_ptr<Device> device_;
};

// Device memory that is freed at the end of the scope.
class Loan {
 public:
  Loan(Device& device, size_t bytes)
      : device_(device), data_(device.allocate(bytes).value()), bytes_(bytes) {}
  ~Loan() { device_.release(data_); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  // Clears memory that is read but never written, which initcheck would report. No stream waits for the
  // clear, so this function waits.
  void clear() const {
    EXPECT_EQ(cudaMemset(data_, 0, bytes_), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

 private:
  Device& device_;
  void* data_;
  size_t bytes_;
};

}  // namespace sluice::test
