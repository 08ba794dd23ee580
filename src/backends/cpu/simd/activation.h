// The activations of ops/activation.h on vectors of f32, within the rounding errors that its bounds allow.
// Highway's per-target header: include inside a file that uses foreach_target.h, after hwy/highway.h.
#if defined(SLUICE_CPU_SIMD_ACTIVATION_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_ACTIVATION_H
#undef SLUICE_CPU_SIMD_ACTIVATION_H
#else
#define SLUICE_CPU_SIMD_ACTIVATION_H
#endif

#include <cmath>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "ops/activation.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// An activation and its parameters, as vector code uses them.
struct ActivationF32 {
  Activation kind = Activation::kIdentity;
  float alpha = 1, beta = 0, limit = 0;
};
HWY_INLINE ActivationF32 activation_f32(Activation kind, const ActivationParams& p) {
  return {kind, static_cast<float>(p.alpha), static_cast<float>(p.beta), static_cast<float>(p.limit)};
}

// Computes only e^-|t|. It cannot overflow, and for very negative t it is the main part of the result.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V t) {
  const V one = hn::Set(d, 1.f);
  const V e = hn::Exp(d, hn::Neg(hn::Abs(t)));
  return hn::Div(hn::IfThenElse(hn::Lt(t, hn::Zero(d)), e, one), hn::Add(one, e));
}

// x sigmoid(t), where t increases with x. At -infinity returns the limit, which the product does not give.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V times_sigmoid(D d, V x, V t) {
  const V infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto at_limit = hn::And(hn::Eq(x, infinity), hn::Eq(t, infinity));
  return hn::IfThenElse(at_limit, hn::Set(d, -0.f), hn::Mul(x, sigmoid(d, t)));
}

// gelu with tanh, computed as (1 + tanh(s)) / 2 = sigmoid(2 s).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh(D d, V x) {
  constexpr float kTwiceRootTwoOverPi = 1.5957691216f;
  const V cube = hn::Mul(hn::Mul(x, x), x);
  return times_sigmoid(d, x,
                       hn::Mul(hn::Set(d, kTwiceRootTwoOverPi), hn::MulAdd(hn::Set(d, 0.044715f), cube, x)));
}

// One lane at a time, because no model that needs speed uses the exact form.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu(D d, V x) {
  constexpr float kRootHalf = 0.70710678f;
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    const bool at_limit = lanes[i] == -std::numeric_limits<float>::infinity();
    lanes[i] = at_limit ? -0.f : 0.5f * lanes[i] * (1 + std::erf(lanes[i] * kRootHalf));
  }
  return hn::Load(d, lanes);
}

// Clamps by comparison, because min and max lose NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V at_most(D, V x, V limit) {
  return hn::IfThenElse(hn::Gt(x, limit), limit, x);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V within(D d, V x, V limit) {
  const V low = hn::Neg(limit);
  return hn::IfThenElse(hn::Lt(x, low), low, at_most(d, x, limit));
}

// act(g), or act(g, u) if gated; other activations ignore u.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V activate(D d, const ActivationF32& a, V g, V u) {
  const V limit = hn::Set(d, a.limit);
  const auto relu = [&] { return hn::IfThenElse(hn::Lt(g, hn::Zero(d)), hn::Zero(d), g); };
  switch (a.kind) {
    case Activation::kIdentity:
      return g;
    case Activation::kRelu:
      return relu();
    case Activation::kRelu2:
      return hn::Mul(relu(), relu());
    case Activation::kSilu:
      return times_sigmoid(d, g, g);
    case Activation::kGelu:
      return gelu(d, g);
    case Activation::kGeluTanh:
      return gelu_tanh(d, g);
    case Activation::kSwiGlu:
      return hn::Mul(times_sigmoid(d, g, g), u);
    case Activation::kSwiGluClamped: {
      const V gate = at_most(d, g, limit);
      const V up = hn::Add(within(d, u, limit), hn::Set(d, a.beta));
      return hn::Mul(times_sigmoid(d, gate, hn::Mul(hn::Set(d, a.alpha), gate)), up);
    }
    case Activation::kSwiGluStep:
      return hn::Mul(at_most(d, times_sigmoid(d, g, g), limit), within(d, u, limit));
    case Activation::kGeGlu:
      return hn::Mul(gelu(d, g), u);
    case Activation::kGeGluTanh:
      return hn::Mul(gelu_tanh(d, g), u);
  }
  return hn::Set(d, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
