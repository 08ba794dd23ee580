// Addresses of rows in a paged cache (ops/kv_write.h), and copies of elements into it.
#pragma once
#include <type_traits>

#include "backends/cuda/tile/e4m3.cuh"

namespace sluice::cuda {

// Offset, in elements, of a slot's row of one head in a cache. P has the sizes page_size, kv_heads and head_dim.
template <class P>
__device__ __forceinline__ int64_t cache_row(const P& p, int64_t slot, int head) {
  const int64_t page = slot / p.page_size, place = slot - page * p.page_size;
  return ((page * p.kv_heads + head) * p.page_size + place) * p.head_dim;
}

// Copies N elements: 16 bytes at once, or one element. Converts them if the types differ.
template <int N, class X, class C>
__device__ __forceinline__ void move(const X* from, C* to) {
  if constexpr (std::is_same_v<X, C>) {
    using Word = std::conditional_t<(N > 1), uint4, X>;
    *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(from);
  } else {
    float values[N];
    tile::load(values, from);
    tile::store(to, values);
  }
}

}  // namespace sluice::cuda
