// GPU tensors that exist while one shape is measured.
#pragma once
#include <string>
#include <vector>

#include "dispatch/device.h"
#include "ops/op.h"

namespace sluice::bench {

constexpr DType kF = DType::kF32, kB = DType::kBF16;

class Memory {
 public:
  explicit Memory(Device& device) : device_(device) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Device& device() { return device_; }
  Stream stream() { return device_.stream(); }
  Status bytes(size_t count, void** out);
  Status tensor(DType type, std::initializer_list<int64_t> shape, Tensor* out);
  Status tensor(const SlotSpec& spec, Tensor* out);
  // Fills with normally distributed numbers, different in each call; bf16 or f32.
  Status fill(const Tensor& tensor, double scale);
  // Makes and fills a tensor.
  Status random(DType type, std::initializer_list<int64_t> shape, double scale, Tensor* out);
  // Makes `count` tensors with different numbers.
  Status random(DType type, std::initializer_list<int64_t> shape, double scale, int64_t count,
                std::vector<Tensor>* out);
  Status several(DType type, std::initializer_list<int64_t> shape, int64_t count, std::vector<Tensor>* out);
  // Makes a tensor with these values.
  Status upload(const std::vector<int32_t>& values, std::initializer_list<int64_t> shape, Tensor* out);

 private:
  Device& device_;
  std::vector<void*> blocks_;
  uint64_t seed_ = 1;
};

// The buffer of run i, in rotation.
inline const Tensor& turn(const std::vector<Tensor>& buffers, int64_t i) {
  return buffers[static_cast<size_t>(i) % buffers.size()];
}
inline Tensor first_rows(Tensor t, int64_t rows) { return t.shape[0] = rows, t; }
inline Tensor row_of(Tensor t, int64_t row) {
  t.data = static_cast<std::byte*>(t.data) + bytes_of(t.dtype, row * t.stride[0]);
  return first_rows(t, 1);
}

// A copy of a tensor on the host. `from` must be contiguous.
struct HostTensor {
  std::string bytes;
  Tensor tensor;
};
Status to_host(Device& device, const Tensor& from, HostTensor* out);

// The number of rotating copies of a run's operands, so that each copy is cold when it is used again: 1 to 64.
int64_t cold_sets(int64_t cold_bytes, double bytes_of_run);

// Page tables i32[rows, columns] for `sets` disjoint sets of pages. Each set has `count` pages; the rest of a table is -1. The pages of a
// sequence are scattered, as after some hours of serving. `first` receives the entries of the first table.
Status page_tables(Memory& memory, int64_t sets, int64_t count, int64_t rows, int64_t columns,
                   std::vector<Tensor>* out, std::vector<int32_t>* first);

// Sets all bytes to 0xff: NaN in floating-point types, -1 in integers.
Status poison(const Tensor& tensor, Stream stream);

}  // namespace sluice::bench
