// Pairs of elements of a head (ops/rope.h): loads, rotation by the angles of their position, stores.
#pragma once
#include "ops/rope.h"

#if defined(__CUDACC__)
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {

// Loads N adjacent pairs of elements. A single pair may be aligned only to its elements.
template <int N, class T>
__device__ __forceinline__ void load_pairs(float (&out)[2 * N], const T* p) {
  if constexpr (N == 1)
    out[0] = tile::to_f32(p[0]), out[1] = tile::to_f32(p[1]);
  else
    tile::load(out, p);
}

// N adjacent pairs of one head, beginning with pair i.
template <int N, class X, RopePairs kPairs>
struct Pairs {
  X* x;  // the rotated elements of the head
  int half, i;

  __device__ __forceinline__ void load(float (&a)[N], float (&b)[N]) const {
    if constexpr (kPairs == RopePairs::kHalves) {
      tile::load(a, x + i);
      tile::load(b, x + half + i);
    } else {
      float both[2 * N];
      load_pairs<N>(both, x + 2 * i);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = both[2 * j], b[j] = both[2 * j + 1];
    }
  }
  __device__ __forceinline__ void store(const float (&a)[N], const float (&b)[N]) const {
    if constexpr (kPairs == RopePairs::kHalves) {
      tile::store(x + i, a);
      tile::store(x + half + i, b);
    } else {
      float both[2 * N];
#pragma unroll
      for (int j = 0; j < N; ++j) both[2 * j] = a[j], both[2 * j + 1] = b[j];
      if constexpr (N == 1)
        x[2 * i] = tile::from_f32<X>(both[0]), x[2 * i + 1] = tile::from_f32<X>(both[1]);
      else
        tile::store(x + 2 * i, both);
    }
  }
};

// Rotates N pairs by table[2 * i ...], the (cos, sin) of their position.
template <int N>
__device__ __forceinline__ void rotate_pairs(float (&a)[N], float (&b)[N], const float* table) {
  float angles[2 * N];
  load_pairs<N>(angles, table);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float c = angles[2 * j], s = angles[2 * j + 1], u = a[j], v = b[j];
    a[j] = fmaf(u, c, -(v * s));
    b[j] = fmaf(v, c, u * s);
  }
}

// One rotated element: `value` is the element before the rotation, `other` its partner. second: it is the second of its pair.
__device__ __forceinline__ float rotated(float value, float other, bool second, float cos, float sin) {
  return fmaf(value, cos, second ? other * sin : -(other * sin));
}

// Pairs per 16-byte access: eight bf16 elements belong to eight pairs if
// partners are half a head apart, and to four pairs if they are adjacent.
inline constexpr int kPairsApart = 8, kPairsWoven = 4;

// Pairs that a thread handles together: as many as 16-byte accesses hold if the
// sizes allow it and addresses and row strides are `aligned`, otherwise one.
inline int pairs_each(const Rope::Problem& p, bool aligned) {
  constexpr int64_t kBytes = 16;
  const auto whole = [&](int64_t elements) { return bytes_of(p.x, elements) % kBytes == 0; };
  const bool halves = p.pairs == RopePairs::kHalves;
  const int pairs = halves ? kPairsApart : kPairsWoven;
  const bool wide = aligned && p.rotary / 2 % pairs == 0 && whole(p.head_dim) && whole(p.first) &&
                    whole(halves ? p.rotary / 2 : p.rotary);
  return wide ? pairs : 1;
}

}  // namespace sluice::cuda
#endif
