// Lays out tensors one after another in a block of memory.
#pragma once
#include "base/arena.h"

namespace sluice {

// Assigns byte offsets.
struct Places {
  size_t used = 0;
  size_t take(DType dtype, int64_t elements) {
    const size_t at = used;
    used += Arena::footprint(static_cast<size_t>(bytes_of(dtype, elements)));
    return at;
  }
};

template <class T>
T* at(std::byte* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

}  // namespace sluice
