// MXFP4 as vectors of f32: codes by table, scales by their exponent bits.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_MXFP4_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_MXFP4_H
#undef SLUICE_CPU_SIMD_MXFP4_H
#else
#define SLUICE_CPU_SIMD_MXFP4_H
#endif

#include <algorithm>
#include <bit>

#include "backends/cpu/simd/dot.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using U32 = hn::RebindToUnsigned<F32>;

// The values of e2m1 codes from 0 to 15.
HWY_INLINE hn::Vec<F32> e2m1_f32(hn::Vec<U32> codes) {
  const F32 d;
  const U32 du;
  if constexpr (hn::MaxLanes(d) == 16) {
    return hn::TableLookupLanes(hn::LoadU(d, kE2M1Values), hn::IndicesFromVec(d, codes));
  } else if constexpr (hn::MaxLanes(d) == 8) {
    const auto magnitude = hn::IndicesFromVec(d, hn::And(codes, hn::Set(du, 7u)));
    const auto sign = hn::ShiftLeft<28>(hn::And(codes, hn::Set(du, 8u)));
    return hn::Or(hn::TableLookupLanes(hn::LoadU(d, kE2M1Values), magnitude), hn::BitCast(d, sign));
  } else {
    return hn::GatherIndex(d, kE2M1Values, hn::BitCast(hn::RebindToSigned<F32>(), codes));
  }
}

// 2^(scale - 127), exact. 0 gives a subnormal number, so its bits are not just an exponent; 255 gives NaN.
HWY_INLINE hn::Vec<F32> e8m0_f32(hn::Vec<U32> scales) {
  const U32 du;
  const auto bits = hn::Max(hn::ShiftLeft<23>(scales), hn::Set(du, 0x00400000u));
  const auto nan = hn::Eq(scales, hn::Set(du, 255u));
  return hn::BitCast(F32(), hn::IfThenElse(nan, hn::Set(du, 0x7FC00000u), bits));
}

HWY_INLINE float e8m0_scalar(uint8_t scale) {
  if (scale == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(std::max(uint32_t{scale} << 23, 0x00400000u));
}

// A checkpoint's block of 32 codes in 16 bytes, in the order of k and before scaling. The caller passes an array of
// vectors, because a struct of vectors would have a constructor, which GCC compiles without this target's instructions.
constexpr int64_t kMxVectors = kMxBlock / static_cast<int64_t>(hn::MaxLanes(F32()));
HWY_INLINE void load_mx_block(const uint8_t* HWY_RESTRICT bytes, hn::Vec<F32> (&values)[kMxVectors]) {
  const hn::Rebind<uint8_t, F32> part;
  HWY_ALIGN uint8_t codes[kMxBlock];
#if HWY_TARGET == HWY_SCALAR  // this target has no vectors of bytes
  for (int64_t i = 0; i < kMxBlock; ++i) codes[i] = bytes[i / 2] >> (i % 2 * 4) & 15;
#else
  const hn::FixedTag<uint8_t, 16> d8;
  const auto packed = hn::LoadU(d8, bytes);
  const auto even = hn::And(packed, hn::Set(d8, uint8_t{15})), odd = hn::ShiftRight<4>(packed);
  hn::Store(hn::InterleaveLower(d8, even, odd), d8, codes);
  hn::Store(hn::InterleaveUpper(d8, even, odd), d8, codes + 16);
#endif
  for (int64_t v = 0; v < kMxVectors; ++v)
    values[v] = e2m1_f32(hn::PromoteTo(U32(), hn::LoadU(part, codes + v * (kMxBlock / kMxVectors))));
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
