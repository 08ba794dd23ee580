// The alignment that kernels with 16-byte accesses need.
#pragma once
#include "base/tensor.h"

namespace sluice::cuda {

// True if every row begins at a multiple of 16 bytes, or if the tensor is absent.
inline bool wide_rows(const Tensor& t) {
  constexpr int64_t kBytes = 16;
  return !t.present() || (reinterpret_cast<uintptr_t>(t.data) % kBytes == 0 &&
                          bytes_of(t.dtype, t.rank > 1 ? t.stride[0] : 0) % kBytes == 0);
}

}  // namespace sluice::cuda
