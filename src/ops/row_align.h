// Alignment of rows of activations.
#pragma once
#include "base/dtype.h"

namespace sluice {

// Returns SlotSpec::row_align of rows of `width` elements: 16 bytes, unless the problem allows rows to
// begin anywhere (x_unaligned) or their size is not a multiple of 16.
inline int row_align(DType type, int64_t width, bool unaligned) {
  constexpr int kBytes = 16;
  return unaligned || bytes_of(type, width) % kBytes != 0 ? 1 : kBytes;
}

}  // namespace sluice
