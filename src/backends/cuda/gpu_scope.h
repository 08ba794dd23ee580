// Sets the calling thread's current GPU for a scope.
#pragma once
#include <cuda_runtime_api.h>

namespace sluice::cuda {

// Makes a GPU current, and at the end of the scope the previous GPU, because callers use other GPUs and libraries.
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
  int before_ = -1;  // the GPU to restore; -1: nothing to restore
  cudaError_t error_ = cudaSuccess;
};

}  // namespace sluice::cuda
