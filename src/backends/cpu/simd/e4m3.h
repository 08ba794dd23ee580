// Rows of e4m3 widened to f32 or bf16; exact.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_E4M3_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_E4M3_H
#undef SLUICE_CPU_SIMD_E4M3_H
#else
#define SLUICE_CPU_SIMD_E4M3_H
#endif

#include "backends/cpu/simd/dot.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

// Lanes(F32()) elements, with the values of to_float(). Codes below 8 are computed
// as integers times 2^-9, because intermediate subnormal f32 would be slow.
HWY_INLINE hn::Vec<F32> load_f32(const E4M3* p) {
  const F32 d;
  const hn::Rebind<uint8_t, F32> bytes;
  const hn::RebindToUnsigned<F32> full;
  const hn::RebindToSigned<F32> whole;
  const auto code = hn::PromoteTo(full, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(p)));
  const auto size = hn::And(code, hn::Set(full, 0x7fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(full, 0x80u)));
  const auto normal = hn::BitCast(d, hn::ShiftLeft<20>(hn::Add(size, hn::Set(full, 120u << 3))));
  const auto small = hn::Mul(hn::ConvertTo(d, hn::BitCast(whole, size)), hn::Set(d, 0x1p-9f));
  const auto is_small = hn::RebindMask(d, hn::Lt(hn::BitCast(whole, size), hn::Set(whole, 8)));
  const auto is_nan = hn::RebindMask(d, hn::Eq(size, hn::Set(full, 0x7fu)));
  const auto value = hn::IfThenElse(is_nan, hn::NaN(d), hn::IfThenElse(is_small, small, normal));
  return hn::Or(value, hn::BitCast(d, sign));
}

template <class T>
HWY_INLINE void widen_row(const E4M3* from, int64_t count, T* to) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store_f32(load_f32(from + i), to + i);
  for (; i < count; ++i) store_scalar(to_float(from[i]), to + i);
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
