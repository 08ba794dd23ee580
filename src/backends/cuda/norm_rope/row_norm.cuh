// The norm of a row in registers (ops/rms_norm.h). The kernels differ in which threads add up the squares.
#pragma once
#include <cstdint>

namespace sluice::cuda {

// With this many CTAs or more, dependent launch costs a chain of kernels more than the microsecond that it hides (docs/lab/cuda-routing.md).
inline constexpr int64_t kManyRows = 4096;

template <int N>
__device__ __forceinline__ float squares(const float (&h)[N]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum = fmaf(h[i], h[i], sum);
  return sum;
}

// 1 / RMS of a row; `sum` is the sum of the squares of `hidden` elements.
__device__ __forceinline__ float inverse_root(float sum, int hidden, float eps) {
  return 1.f / sqrtf(sum / static_cast<float>(hidden) + eps);
}

template <int N>
__device__ __forceinline__ void scale(float (&out)[N], const float (&h)[N], float inverse,
                                      const float (&w)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = h[i] * inverse * w[i];
}

}  // namespace sluice::cuda
