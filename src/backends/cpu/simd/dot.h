// Vector building blocks of the kernels: loads that widen to f32, and dot products.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_DOT_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_DOT_H
#undef SLUICE_CPU_SIMD_DOT_H
#else
#define SLUICE_CPU_SIMD_DOT_H
#endif

#include "base/dtype.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;

// Lanes(F32()) elements as f32; bf16 widens exactly.
HWY_INLINE hn::Vec<F32> load_f32(const float* p) { return hn::LoadU(F32(), p); }
HWY_INLINE hn::Vec<F32> load_f32(const BF16* p) {
  const hn::Rebind<uint16_t, F32> half;
  const hn::RebindToUnsigned<F32> full;
  const auto bits = hn::PromoteTo(full, hn::LoadU(half, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE float scalar_f32(float v) { return v; }
HWY_INLINE float scalar_f32(BF16 v) { return to_float(v); }

// Rounds to bf16, as to_bf16() does.
HWY_INLINE auto bf16_bits(hn::Vec<F32> v) {
  const hn::Rebind<uint16_t, F32> half;
  const hn::RebindToUnsigned<F32> full;
  const auto bits = hn::BitCast(full, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(full, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(full, 0x7fffu)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(full, 0x40u));
  const auto out = hn::IfThenElse(hn::RebindMask(full, hn::IsNaN(v)), quiet, rounded);
  return hn::DemoteTo(half, hn::BitCast(hn::RebindToSigned<decltype(full)>(), out));
}
// Rounds to the type of the destination.
HWY_INLINE void store_f32(hn::Vec<F32> v, float* p) { hn::StoreU(v, F32(), p); }
HWY_INLINE void store_f32(hn::Vec<F32> v, BF16* p) {
  hn::StoreU(bf16_bits(v), hn::Rebind<uint16_t, F32>(), reinterpret_cast<uint16_t*>(p));
}
HWY_INLINE void store_scalar(float v, float* p) { *p = v; }
HWY_INLINE void store_scalar(float v, BF16* p) { *p = to_bf16(v); }

// sum_i a[i] * b[i] in f32. The order depends only on n and the vector width.
template <class A, class B>
HWY_INLINE float dot(const A* HWY_RESTRICT a, const B* HWY_RESTRICT b, int64_t n) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::MulAdd(load_f32(a + i), load_f32(b + i), s0);
    s1 = hn::MulAdd(load_f32(a + i + lanes), load_f32(b + i + lanes), s1);
    s2 = hn::MulAdd(load_f32(a + i + 2 * lanes), load_f32(b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(load_f32(a + i + 3 * lanes), load_f32(b + i + 3 * lanes), s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::MulAdd(load_f32(a + i), load_f32(b + i), s0);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += scalar_f32(a[i]) * scalar_f32(b[i]);
  return sum;
}

// out[i * kB + j] = a[i] . b[j]. In every tile size a sum is one chain of vectors, so a pair of rows gives the same bits in any of them.
template <int kA, int kB, class A, class B>
HWY_INLINE void dot_tile(const A* const* a, const B* const* b, int64_t n, float* out) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<F32> sum[kA][kB];
  for (int i = 0; i < kA; ++i)
    for (int j = 0; j < kB; ++j) sum[i][j] = hn::Zero(d);
  int64_t k = 0;
  for (; k + lanes <= n; k += lanes) {
    hn::Vec<F32> w[kB];
    for (int j = 0; j < kB; ++j) w[j] = load_f32(b[j] + k);
    for (int i = 0; i < kA; ++i) {
      const auto x = load_f32(a[i] + k);
      for (int j = 0; j < kB; ++j) sum[i][j] = hn::MulAdd(x, w[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kA; ++i) {
    for (int j = 0; j < kB; ++j) {
      float total = hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
      for (int64_t t = k; t < n; ++t) total += scalar_f32(a[i][t]) * scalar_f32(b[j][t]);
      out[i * kB + j] = total;
    }
  }
}

// Calls take(t, e, sum) with row_a(t) . row_b(e) for t in [0, rows) and e in [begin, end). Tiles of four by four rows share their loads.
template <class RowA, class RowB, class Take>
HWY_INLINE void for_each_dot(int64_t rows, RowA row_a, int64_t begin, int64_t end, RowB row_b, int64_t n,
                             Take take) {
  constexpr int kTile = 4;
  const auto tile = [&]<int kA, int kB>(int64_t t, int64_t e) {
    decltype(row_a(t)) a[kA];
    decltype(row_b(e)) b[kB];
    float out[kA * kB];
    for (int i = 0; i < kA; ++i) a[i] = row_a(t + i);
    for (int j = 0; j < kB; ++j) b[j] = row_b(e + j);
    dot_tile<kA, kB>(a, b, n, out);
    for (int i = 0; i < kA; ++i)
      for (int j = 0; j < kB; ++j) take(t + i, e + j, out[i * kB + j]);
  };
  const auto column = [&]<int kB>(int64_t e) {
    int64_t t = 0;
    for (; t + kTile <= rows; t += kTile) tile.template operator()<kTile, kB>(t, e);
    for (; t < rows; ++t) tile.template operator()<1, kB>(t, e);
  };
  int64_t e = begin;
  for (; e + kTile <= end; e += kTile) column.template operator()<kTile>(e);
  for (; e < end; ++e) column.template operator()<1>(e);
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
