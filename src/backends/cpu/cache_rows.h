// Shared by the CPU kernels that write a paged cache: its element type, and the conversion of rows.
#pragma once
#include <cstring>

#include "backends/cpu/card.h"
#include "ops/cache_type.h"

namespace sluice::cpu {

// Converts `count` elements of a row of keys or values.
template <class X>
void write_cache(const X* from, int64_t count, X* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(X));
}
inline void write_cache(const float* from, int64_t count, E4M3* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_e4m3(from[i]);
}
inline void write_cache(const BF16* from, int64_t count, E4M3* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to_e4m3(to_float(from[i]));
}

// Calls f(X*, C*) with the element type of keys and values, and the element type of their cache.
template <class F>
void with_cache(CacheType cache, DType type, F f) {
  with_float(type, [&]<class X>(const X* x) {
    if (cache == CacheType::kE4M3) {
      f(x, static_cast<const E4M3*>(nullptr));
    } else {
      f(x, x);
    }
  });
}

}  // namespace sluice::cpu
