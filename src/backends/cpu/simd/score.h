// ops/score_math.h for vectors: the same operations in the same order, so the same bits. Change both files together.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_SCORE_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_SCORE_H
#undef SLUICE_CPU_SIMD_SCORE_H
#else
#define SLUICE_CPU_SIMD_SCORE_H
#endif

#include "backends/cpu/simd/dot.h"
#include "ops/score_math.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

HWY_INLINE hn::Vec<F32> exp_v(hn::Vec<F32> x) {
  using namespace score;
  const F32 d;
  const hn::RebindToUnsigned<F32> du;
  const auto shifted = hn::Add(hn::Mul(x, hn::Set(d, kLog2E)), hn::Set(d, kRound));
  const auto n = hn::Add(shifted, hn::Set(d, -kRound));
  const auto r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(d, kLn2High))), hn::Mul(n, hn::Set(d, kLn2Low)));
  auto q = hn::Add(hn::Mul(hn::Set(d, kExp[4]), r), hn::Set(d, kExp[3]));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, kExp[2]));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, kExp[1]));
  q = hn::Add(hn::Mul(q, r), hn::Set(d, kExp[0]));
  const auto p = hn::Add(hn::Add(hn::Mul(hn::Mul(q, r), r), r), hn::Set(d, 1.f));
  const auto bits = hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, shifted)), hn::Set(du, 0x3f800000u));
  auto out = hn::Mul(p, hn::BitCast(d, bits));
  out = hn::IfThenElse(hn::Lt(x, hn::Set(d, -kExpLimit)), hn::Zero(d), out);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, kExpLimit)), hn::Set(d, infinity()), out);
}

HWY_INLINE hn::Vec<F32> sigmoid_v(hn::Vec<F32> x) {
  const F32 d;
  const auto one = hn::Set(d, 1.f);
  return hn::Div(one, hn::Add(one, exp_v(hn::Neg(x))));
}

HWY_INLINE hn::Vec<F32> sqrt_softplus_v(hn::Vec<F32> x) {
  using namespace score;
  const F32 d;
  const auto tail = hn::Lt(x, hn::Set(d, kSoftplusTail));
  const auto positive = hn::Gt(x, hn::Zero(d));
  const auto near = hn::IfThenElse(positive, hn::Neg(x), x);
  const auto z = exp_v(hn::IfThenElse(tail, hn::Mul(x, hn::Set(d, .5f)), near));
  const auto s = hn::Div(z, hn::Add(z, hn::Set(d, 2.f)));
  const auto v = hn::Mul(s, s);
  auto q = hn::Add(hn::Mul(hn::Set(d, kAtanh[4]), v), hn::Set(d, kAtanh[3]));
  q = hn::Add(hn::Mul(q, v), hn::Set(d, kAtanh[2]));
  q = hn::Add(hn::Mul(q, v), hn::Set(d, kAtanh[1]));
  q = hn::Add(hn::Mul(q, v), hn::Set(d, kAtanh[0]));
  const auto twice = hn::Add(s, s);
  const auto log1p = hn::Add(hn::Mul(hn::Mul(q, v), twice), twice);
  const auto root = hn::Sqrt(hn::IfThenElse(positive, hn::Add(x, log1p), log1p));
  return hn::IfThenElse(tail, z, root);
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
