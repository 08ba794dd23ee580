// What kernels of 16-byte accesses ask of a tensor.
#pragma once
#include "base/tensor.h"

namespace sluice::cuda {

// Whether each row begins at a multiple of 16 bytes; true of a tensor that is not there.
inline bool wide_rows(const Tensor& t) {
  constexpr int64_t kBytes = 16;
  return !t.present() || (reinterpret_cast<uintptr_t>(t.data) % kBytes == 0 &&
                          bytes_of(t.dtype, t.rank > 1 ? t.stride[0] : 0) % kBytes == 0);
}

}  // namespace sluice::cuda
