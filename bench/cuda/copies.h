// Back-to-back copies from the host to the GPU on a separate stream, as a server makes them while its kernels run.
#pragma once
#include <cuda_runtime_api.h>

#include <atomic>

#include "base/status.h"
#include "base/worker_thread.h"

namespace sluice::bench {

class Copies {
 public:
  Copies() = default;
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  // Returns when copies are in flight.
  Status start();

 private:
  void work();

  static constexpr size_t kBytes = size_t{8} << 20;  // per copy
  void *host_ = nullptr, *device_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_[2] = {};
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> copied_ = 0;
  WorkerThread thread_;
};

}  // namespace sluice::bench
