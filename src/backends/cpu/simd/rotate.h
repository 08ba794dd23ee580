// Rotates the pairs of a head by the angles of their position (ops/rope.h).
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_ROTATE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_ROTATE_H
#undef SLUICE_CPU_SIMD_ROTATE_H
#else
#define SLUICE_CPU_SIMD_ROTATE_H
#endif

#include "backends/cpu/simd/dot.h"
#include "ops/rope.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

HWY_INLINE void load_pairs(const float* x, hn::Vec<F32>& a, hn::Vec<F32>& b) {
  hn::LoadInterleaved2(F32(), x, a, b);
}
HWY_INLINE void load_pairs(const BF16* x, hn::Vec<F32>& a, hn::Vec<F32>& b) {
  const hn::Rebind<uint16_t, F32> half;
  const hn::RebindToUnsigned<F32> full;
  hn::Vec<decltype(half)> even, odd;
  hn::LoadInterleaved2(half, reinterpret_cast<const uint16_t*>(x), even, odd);
  a = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(full, even)));
  b = hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(full, odd)));
}
HWY_INLINE void store_pairs(hn::Vec<F32> a, hn::Vec<F32> b, float* x) {
  hn::StoreInterleaved2(a, b, F32(), x);
}
HWY_INLINE void store_pairs(hn::Vec<F32> a, hn::Vec<F32> b, BF16* x) {
  const hn::Rebind<uint16_t, F32> half;
  hn::StoreInterleaved2(bf16_bits(a), bf16_bits(b), half, reinterpret_cast<uint16_t*>(x));
}

template <class X>
HWY_INLINE void rotate_pair(X* a, X* b, float c, float s) {
  const float u = scalar_f32(*a), v = scalar_f32(*b);
  store_scalar(u * c - v * s, a);
  store_scalar(v * c + u * s, b);
}

// x: the rotated elements of the head; table: the (cos, sin) of its position.
template <RopePairs kPairs, class X>
HWY_INLINE void rotate_head(X* x, const float* table, int64_t half) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    hn::Vec<F32> c, s, a, b;
    hn::LoadInterleaved2(d, table + 2 * i, c, s);
    if constexpr (kPairs == RopePairs::kHalves) {
      a = load_f32(x + i), b = load_f32(x + i + half);
    } else {
      load_pairs(x + 2 * i, a, b);
    }
    const auto rotated_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
    const auto rotated_b = hn::MulAdd(a, s, hn::Mul(b, c));
    if constexpr (kPairs == RopePairs::kHalves) {
      store_f32(rotated_a, x + i);
      store_f32(rotated_b, x + i + half);
    } else {
      store_pairs(rotated_a, rotated_b, x + 2 * i);
    }
  }
  for (; i < half; ++i) {
    X* a = kPairs == RopePairs::kHalves ? x + i : x + 2 * i;
    rotate_pair(a, kPairs == RopePairs::kHalves ? a + half : a + 1, table[2 * i], table[2 * i + 1]);
  }
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
