// The activations of expert and dense layers in double precision, with error bounds derived from their slopes.
#pragma once
#include <cstdint>
#include <string_view>

#include "base/fields.h"

namespace sluice {

// Functions of one pre-activation x, or of a gate g and an up value u. The bias is already added.
enum class Activation : uint8_t {
  kIdentity,       // x
  kRelu,           // max(x, 0)
  kRelu2,          // max(x, 0)^2                                                 Nemotron
  kSilu,           // x sigmoid(x)
  kGelu,           // x (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,       // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
  kSwiGlu,         // silu(g) u
  kSwiGluClamped,  // g' = min(g, limit), u' = clamp(u, -limit, limit): g' sigmoid(alpha g') (u' + beta)
                   //   gpt-oss: alpha 1.702, beta 1, limit 7. DeepSeek V4: alpha 1, beta 0, limit 10
  kSwiGluStep,     // min(silu(g), limit) clamp(u, -limit, limit): the clamp comes after silu
  kGeGlu,          // gelu(g) u
  kGeGluTanh,      // gelu_tanh(g) u
};
template <>
struct EnumWords<Activation> {
  static constexpr std::string_view words[] = {"identity",    "relu",      "relu2",     "silu",
                                               "gelu",        "gelu_tanh", "swiglu",    "swiglu_clamped",
                                               "swiglu_step", "geglu",     "geglu_tanh"};
};

constexpr bool is_gated(Activation a) { return a >= Activation::kSwiGlu; }

struct ActivationParams {
  double alpha = 1, beta = 0, limit = 0;  // only kSwiGluClamped and kSwiGluStep read `limit`
};

// A value, and a bound on the error of computing it in f32.
struct Bounded {
  double value = 0, bound = 0;
};

// act(g) or act(g, u) for inputs that are known within error bounds. NaN in, NaN out.
Bounded activate(Activation activation, const ActivationParams& params, Bounded g, Bounded u);

}  // namespace sluice
