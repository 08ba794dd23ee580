// Four horizontal sums at once.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_FOUR_SUMS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_FOUR_SUMS_H
#undef SLUICE_CPU_SIMD_FOUR_SUMS_H
#else
#define SLUICE_CPU_SIMD_FOUR_SUMS_H
#endif

#include "backends/cpu/simd/dot.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// Stores the horizontal sums of four vectors, `apart` floats apart.
HWY_INLINE void store_sums(hn::Vec<F32> a, hn::Vec<F32> b, hn::Vec<F32> c, hn::Vec<F32> e, int64_t apart,
                           float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a), out[apart] = hn::GetLane(b);
  out[2 * apart] = hn::GetLane(c), out[3 * apart] = hn::GetLane(e);
#else
  // Sums of adjacent lanes, those of x before those of y. Three such steps are faster than four separate reductions.
  const F32 d;
  const auto pairs = [&](hn::Vec<F32> x, hn::Vec<F32> y) {
    return hn::Add(hn::ConcatEven(d, y, x), hn::ConcatOdd(d, y, x));
  };
  hn::Vec<F32> sums = pairs(pairs(a, b), pairs(c, e));
  for (size_t left = hn::Lanes(d) / 4; left > 1; left /= 2) sums = pairs(sums, sums);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(sums, d, lanes);
  for (int64_t x = 0; x < 4; ++x) out[x * apart] = lanes[x];
#endif
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
