// How rows of activations begin.
#pragma once
#include "base/dtype.h"

namespace sluice {

// SlotSpec::row_align of rows of `width` elements: 16 bytes, unless the problem says that they may begin anywhere (x_unaligned), or their
// length is no multiple of it.
inline int row_align(DType type, int64_t width, bool unaligned) {
  constexpr int kBytes = 16;
  return unaligned || bytes_of(type, width) % kBytes != 0 ? 1 : kBytes;
}

}  // namespace sluice
