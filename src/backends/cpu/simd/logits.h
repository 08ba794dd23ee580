// Scans of a row of logits, shared by the operations that sample tokens and that list log probabilities.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_LOGITS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_LOGITS_H
#undef SLUICE_CPU_SIMD_LOGITS_H
#else
#define SLUICE_CPU_SIMD_LOGITS_H
#endif

#include <algorithm>
#include <limits>

#include "backends/cpu/kernels/logit_entry.h"
#include "backends/cpu/simd/dot.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The largest of x[0 .. n). NaN is less than everything.
template <class T>
HWY_INLINE float largest(const T* x, int64_t n) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto lane_max = hn::Set(d, kNothing);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = load_f32(x + i);
    lane_max = hn::IfThenElse(hn::Gt(v, lane_max), v, lane_max);
  }
  float out = hn::GetLane(hn::MaxOfLanes(d, lane_max));
  for (; i < n; ++i) out = scalar_f32(x[i]) > out ? scalar_f32(x[i]) : out;
  return out;
}

// The first index from i on whose element exceeds `threshold`, or n if there is none.
template <class T>
HWY_INLINE int64_t next_above(const T* x, int64_t i, int64_t n, float threshold) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  for (; i + lanes <= n; i += lanes) {
    const auto above = hn::Gt(load_f32(x + i), limit);
    if (!hn::AllFalse(d, above)) return i + hn::FindFirstTrue(d, above);
  }
  for (; i < n; ++i)
    if (scalar_f32(x[i]) > threshold) return i;
  return n;
}

using F64 = hn::ScalableTag<double>;
using F32Half = hn::Rebind<float, F64>;

HWY_INLINE hn::Vec<F64> load_f64(const float* x) { return hn::PromoteTo(F64(), hn::LoadU(F32Half(), x)); }
HWY_INLINE hn::Vec<F64> load_f64(const BF16* x) {
  const hn::Rebind<uint16_t, F64> quarter;
  const hn::Rebind<uint32_t, F64> half;
  const auto bits = hn::PromoteTo(half, hn::LoadU(quarter, reinterpret_cast<const uint16_t*>(x)));
  return hn::PromoteTo(F64(), hn::BitCast(F32Half(), hn::ShiftLeft<16>(bits)));
}

// sum of e^((x - base) / temperature) over the elements above -inf.
template <class T>
HWY_INLINE double sum_of_weights(const T* x, int64_t n, double base, double temperature) {
  const F64 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto top = hn::Set(d, base), divisor = hn::Set(d, temperature);
  const auto nothing = hn::Set(d, -std::numeric_limits<double>::infinity()),
             lowest_power = hn::Set(d, -1000.0);
  auto sum = hn::Zero(d);
  const auto add = [&](hn::Vec<F64> v) {
    const auto counts = hn::Gt(v, nothing);
    const auto power = hn::Div(hn::Sub(hn::IfThenElse(counts, v, top), top), divisor);
    sum = hn::Add(sum, hn::IfThenElseZero(counts, hn::Exp(d, hn::Max(power, lowest_power))));
  };
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) add(load_f64(x + i));
  if (i < n) {
    HWY_ALIGN double tail[hn::MaxLanes(d)];
    std::fill_n(tail, lanes, -std::numeric_limits<double>::infinity());
    for (int64_t j = i; j < n; ++j) tail[j - i] = scalar_f32(x[j]);
    add(hn::Load(d, tail));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Gathers the `k` largest of a row, in order. Returns the number of them above -inf. `out` holds gather_room(n, k); k >= 1.
template <class T>
HWY_INLINE int64_t gather(const T* x, int64_t n, int64_t k, Entry* out) {
  const int64_t room = gather_room(n, k);
  float threshold = kNothing;
  int64_t count = 0;
  const auto keep_k = [&] {
    std::nth_element(out, out + k - 1, out + count, before);
    count = k;
    threshold = out[k - 1].logit;  // a later equal logit has a higher id, so it would be dropped
  };
  for (int64_t i = next_above(x, 0, n, threshold); i < n; i = next_above(x, i + 1, n, threshold)) {
    if (count == room) keep_k();
    out[count++] = {scalar_f32(x[i]), static_cast<int32_t>(i)};
  }
  if (count > k) keep_k();
  std::sort(out, out + count, before);
  return count;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
