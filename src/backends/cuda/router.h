// Shared by the router GEMM kernels.
#pragma once
#include <cuda_runtime.h>

#include "ops/router_gemm.h"
#if defined(__CUDACC__)
#include "backends/cuda/tile/vector.cuh"
#endif

namespace sluice::cuda {

struct RouterParameters {
  const void *x, *w, *bias;
  void* y;
  int64_t x_stride, y_stride;  // elements between rows
  int tokens, experts, hidden;
  bool x_wide;   // every row of x is 16-byte aligned
  bool y_bf16;   // otherwise f32
  bool y_pairs;  // two adjacent logits, the first one at an even index, may be stored together
};

inline RouterParameters router_parameters(const RouterGemm::Problem& p, const RouterGemm::Args& a) {
  constexpr int64_t kLoad = 16;
  const int64_t pair = bytes_of(p.y, 2);
  const auto aligned = [](const Tensor& t, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(bytes) == 0 &&
           bytes_of(t.dtype, t.stride[0]) % bytes == 0;
  };
  return {.x = a.x.data,
          .w = a.w.data,
          .bias = a.bias.data,
          .y = a.y.data,
          .x_stride = a.x.stride[0],
          .y_stride = a.y.stride[0],
          .tokens = static_cast<int>(p.tokens),
          .experts = static_cast<int>(p.experts),
          .hidden = static_cast<int>(p.hidden),
          .x_wide = aligned(a.x, kLoad),
          .y_bf16 = p.y == DType::kBF16,
          .y_pairs = aligned(a.y, pair)};
}

#if defined(__CUDACC__)
__device__ __forceinline__ void store_logit(const RouterParameters& p, int token, int expert, float value) {
  const int64_t at = token * p.y_stride + expert;
  if (p.y_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(p.y)[at] = value;
  }
}

// Stores the logits of two adjacent experts, of which the first is even. Logits after the last expert are not stored.
__device__ __forceinline__ void store_logits(const RouterParameters& p, int token, int expert, float2 value) {
  if (!p.y_pairs || expert + 1 >= p.experts) {
    if (expert < p.experts) store_logit(p, token, expert, value.x);
    if (expert + 1 < p.experts) store_logit(p, token, expert + 1, value.y);
    return;
  }
  const int64_t at = token * p.y_stride + expert;
  if (p.y_bf16) {
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(p.y) + at) = __float22bfloat162_rn(value);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(p.y) + at) = value;
  }
}
#endif

}  // namespace sluice::cuda
