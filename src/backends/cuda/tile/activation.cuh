// The activations of ops/activation.h in f32, within the errors that their contract allows.
#pragma once
#include <cstdint>

#include "ops/activation.h"

namespace sluice::cuda::tile {

struct ActivationValues {
  Activation which = Activation::kIdentity;
  float alpha = 1, beta = 0, limit = 0;
};

// x / (1 + e^(-alpha x)). The result for x = -infinity is -0. The argument of the exponential has three roundings: -alpha * log2(e), whose
// constant has a smaller error of its own, and the product with x.
__device__ __forceinline__ float swish(float x, float alpha) {
  constexpr float kLog2E = 1.44269502f;
  const float finite = x < -1e30f ? -1e30f : x;
  float e, sigmoid;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(finite * (alpha * -kLog2E)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.f + e));
  return finite * sigmoid;
}
// Clamps. NaN stays NaN.
__device__ __forceinline__ float at_most(float x, float limit) {
  float out;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(limit));
  return out;
}
__device__ __forceinline__ float at_least(float x, float limit) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(limit));
  return out;
}
__device__ __forceinline__ float within(float x, float limit) { return at_least(at_most(x, limit), -limit); }
__device__ __forceinline__ float gelu(float x) {
  return x < -1e30f ? -0.f : 0.5f * x * (1.f + erff(x * 0.707106781f));
}
__device__ __forceinline__ float gelu_tanh(float x) {
  return x < -1e30f ? -0.f : 0.5f * x * (1.f + tanhf(0.797884561f * (x + 0.044715f * x * x * x)));
}

template <int N, class F>
__device__ __forceinline__ void for_each(float (&x)[N], F f) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = f(x[i], i);
}

// Replaces x by act(x), or by act(x, u) if the layer is gated. All threads of a warp pass the same activation.
template <int N>
__device__ __forceinline__ void activate_gated(const ActivationValues& a, float (&x)[N],
                                               const float (&u)[N]) {
  switch (a.which) {
    case Activation::kSwiGluStep:
      return for_each(
          x, [&](float g, int i) { return at_most(swish(g, 1.f), a.limit) * within(u[i], a.limit); });
    case Activation::kGeGlu:
      return for_each(x, [&](float g, int i) { return gelu(g) * u[i]; });
    case Activation::kGeGluTanh:
      return for_each(x, [&](float g, int i) { return gelu_tanh(g) * u[i]; });
    default:  // kSwiGlu, which has no limit
      return for_each(x, [&](float g, int i) {
        return swish(at_most(g, a.limit), a.alpha) * (within(u[i], a.limit) + a.beta);
      });
  }
}
template <int N>
__device__ __forceinline__ void activate_plain(const ActivationValues& a, float (&x)[N]) {
  switch (a.which) {
    case Activation::kRelu:
      return for_each(x, [](float v, int) { return v < 0 ? 0.f : v; });
    case Activation::kRelu2:
      return for_each(x, [](float v, int) { return v < 0 ? 0.f : v * v; });
    case Activation::kSilu:
      return for_each(x, [](float v, int) { return swish(v, 1.f); });
    case Activation::kGelu:
      return for_each(x, [](float v, int) { return gelu(v); });
    case Activation::kGeluTanh:
      return for_each(x, [](float v, int) { return gelu_tanh(v); });
    default:
      return;
  }
}

}  // namespace sluice::cuda::tile
