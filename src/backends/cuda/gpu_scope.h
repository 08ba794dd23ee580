// Which GPU is a thread's current one.
#pragma once
#include <cuda_runtime_api.h>

namespace sluice::cuda {

// Makes a GPU the calling thread's current one for a scope: callers have GPUs and libraries of their own.
class OnGpuScope {
 public:
  explicit OnGpuScope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ == device) {
      before_ = -1;
    } else {
      error_ = cudaSetDevice(device);
    }
  }
  ~OnGpuScope() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  OnGpuScope(const OnGpuScope&) = delete;
  OnGpuScope& operator=(const OnGpuScope&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = -1;  // to be made current again; -1: nothing changed
  cudaError_t error_ = cudaSuccess;
};

}  // namespace sluice::cuda
