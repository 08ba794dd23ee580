#include "ops/activation.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "ops/op.h"

namespace sluice {
namespace {

// The error that a kernel may make in one of these functions, in f32 roundings of the result.
constexpr double kRoundings = 16;
// The roundings that a kernel may make in the argument of the exponential of x sigmoid(alpha x).
constexpr double kArgumentRoundings = 4;
// Largest slopes over the reals: of x sigmoid(alpha x), for any alpha; of gelu and its tanh form.
constexpr double kSiluSlope = 1.1, kGeluSlope = 1.13;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x sigmoid(alpha x). At -infinity the product would be NaN; the limit is -0.
double swish(double x, double alpha) {
  if (x == -std::numeric_limits<double>::infinity() && alpha > 0) return -0.0;
  return x * sigmoid(alpha * x);
}
double gelu(double x) {
  if (x == -std::numeric_limits<double>::infinity()) return -0.0;
  return 0.5 * x * (1 + std::erf(x * std::numbers::sqrt2 / 2));
}
double gelu_tanh(double x) {
  if (x == -std::numeric_limits<double>::infinity()) return -0.0;
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
// Clamps that return NaN for NaN.
double at_most(double x, double limit) { return x > limit ? limit : x; }
double within(double x, double limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// Adds the error of evaluation in f32. `part_scale` covers results that are tiny differences or subnormal:
// 1 + erf and 1 + tanh cancel near -1, so the absolute error is as large as the summands' error.
Bounded evaluated(double value, double propagated, double part_scale) {
  return {value, propagated + kRoundings * kF32Eps * (std::abs(value) + part_scale) + kFlush};
}

Bounded product(Bounded a, Bounded b) {
  return evaluated(a.value * b.value, a.bound * (std::abs(b.value) + b.bound) + std::abs(a.value) * b.bound,
                   0);
}

}  // namespace

Bounded activate(Activation activation, const ActivationParams& params, Bounded g, Bounded u) {
  const double x = g.value;
  const auto of = [&](double value, double slope, double part_scale) {
    return evaluated(value, slope * g.bound, part_scale);
  };
  const auto swish_of = [&](double gate, double alpha) {
    Bounded out = of(swish(gate, alpha), kSiluSlope, 0);
    if (std::isfinite(gate))
      out.bound += kArgumentRoundings * kF32Eps * std::abs(out.value * alpha * gate) * sigmoid(-alpha * gate);
    return out;
  };
  switch (activation) {
    case Activation::kIdentity:
      return g;
    case Activation::kRelu:
      return {x < 0 ? 0 : x, g.bound};
    case Activation::kRelu2: {
      const Bounded r{x < 0 ? 0 : x, g.bound};
      return product(r, r);
    }
    case Activation::kSilu:
      return swish_of(x, 1);
    case Activation::kGelu:
      return of(gelu(x), kGeluSlope, std::abs(x));
    case Activation::kGeluTanh:
      return of(gelu_tanh(x), kGeluSlope, std::abs(x));
    case Activation::kSwiGlu:
      return product(swish_of(x, 1), u);
    case Activation::kSwiGluClamped: {
      const double gate = at_most(x, params.limit);
      const Bounded up{within(u.value, params.limit) + params.beta,
                       u.bound + kF32Eps * (std::abs(u.value) + std::abs(params.beta))};
      return product(swish_of(gate, params.alpha), up);
    }
    case Activation::kSwiGluStep: {
      Bounded gate = swish_of(x, 1);
      gate.value = at_most(gate.value, params.limit);
      return product(gate, {within(u.value, params.limit), u.bound});
    }
    case Activation::kGeGlu:
      return product(of(gelu(x), kGeluSlope, std::abs(x)), u);
    case Activation::kGeGluTanh:
      return product(of(gelu_tanh(x), kGeluSlope, std::abs(x)), u);
  }
  return {std::numeric_limits<double>::quiet_NaN(), 0};
}

}  // namespace sluice
