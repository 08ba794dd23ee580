// Shared by the kernels of ops/expert_lora.h: their parameters, the expert and adapter of a row, and the epilogue of one element.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>
#include <limits>

#include "backends/cuda/tile/activation.cuh"
#include "backends/cuda/tile/vector.cuh"
#include "ops/expert_lora.h"

namespace sluice::cuda {

struct LoraParameters {
  const void *x, *a, *b, *z, *bias;
  const float *scale, *act_params;
  const int32_t *adapter, *row_begin, *row_count, *order;
  void* y;
  int64_t x_stride, z_stride, y_stride;  // elements between rows
  int rows, slots, experts, adapters;
  int features, width, rank, inner, product_rows;
  GateOrder gate_order;
  WeightLayout layout;
  bool gathers, split, gated, z_bf16, bias_bf16, y_bf16;
  tile::ActivationValues act;
};

inline LoraParameters lora_parameters(const ExpertLora::Problem& p, const ExpertLora::Args& a) {
  const bool limited = p.act != Activation::kSwiGlu;  // kSwiGlu is the clamped form without a clamp
  return {
      .x = a.x.data,
      .a = a.a.data,
      .b = a.b.data,
      .z = a.z.data,
      .bias = p.bias ? a.bias.data : nullptr,
      .scale = a.scale.as<const float>(),
      .act_params = p.per_expert ? a.act_params.as<const float>() : nullptr,
      .adapter = a.adapter.as<const int32_t>(),
      .row_begin = a.row_begin.as<const int32_t>(),
      .row_count = a.row_count.as<const int32_t>(),
      .order = a.order.as<const int32_t>(),
      .y = a.y.data,
      .x_stride = a.x.stride[0],
      .z_stride = a.z.stride[0],
      .y_stride = a.y.stride[0],
      .rows = static_cast<int>(p.rows),
      .slots = static_cast<int>(p.slots),
      .experts = static_cast<int>(p.experts),
      .adapters = static_cast<int>(p.adapters),
      .features = static_cast<int>(p.features),
      .width = static_cast<int>(p.width),
      .rank = static_cast<int>(p.rank),
      .inner = static_cast<int>(ExpertLora::inner(p)),
      .product_rows = static_cast<int>(ExpertLora::product_rows(p)),
      .gate_order = p.gate_order,
      .layout = p.layout,
      .gathers = p.gathers,
      .split = p.split,
      .gated = is_gated(p.act),
      .z_bf16 = p.z == DType::kBF16,
      .bias_bf16 = p.bias_type == DType::kBF16,
      .y_bf16 = p.y == DType::kBF16,
      .act = {p.act, limited ? static_cast<float>(p.alpha) : 1.f, limited ? static_cast<float>(p.beta) : 0.f,
              limited ? static_cast<float>(p.limit) : std::numeric_limits<float>::infinity()}};
}

#ifdef __CUDACC__

// A row's expert (-1: the row belongs to none), its row of x, and the index of its (adapter, expert) in a and b (-1: no adapter).
struct LoraRow {
  int expert = -1, x_row = 0, pair = -1;
};

// Returns row first + lane to each lane below `count`. Called by all lanes of a warp. An expert's rows begin at row_begin, which does not
// decrease, so the expert of a row is the last one that begins at or before it, if the row is below that expert's count.
template <int kRowsMax>
__device__ __forceinline__ LoraRow lora_row(const LoraParameters& p, int first, int count) {
  const int lane = threadIdx.x % 32, row = first + lane;
  int begun = 0;  // experts that begin at or before this lane's row
#pragma unroll 4
  for (int e = 0; e < p.experts; e += 32) {
    const int begin = e + lane < p.experts ? p.row_begin[e + lane] : INT32_MAX;
#pragma unroll
    for (int t = 0; t < kRowsMax; ++t) {
      const int these = __popc(__ballot_sync(~0u, begin <= first + t));
      if (t == lane) begun += these;
    }
  }
  LoraRow out;
  const int expert = begun - 1;
  if (lane >= count || row >= p.rows || expert < 0) return out;
  if (row >= p.row_begin[expert] + p.row_count[expert]) return out;
  const int token = p.order[row] / p.slots, adapter = p.adapter[token];
  out.expert = expert;
  out.x_row = p.gathers ? token : row;
  if (adapter >= 0 && adapter < p.adapters) out.pair = adapter * p.experts + expert;
  return out;
}

// The row of b and of the bias, and the column of z, of a feature's gate or up.
__device__ __forceinline__ int lora_product_row(const LoraParameters& p, int feature, bool up) {
  return p.gated ? static_cast<int>(gated_row(p.gate_order, p.features, feature, up)) : feature;
}
__device__ __forceinline__ int lora_z_column(const LoraParameters& p, int feature, bool up) {
  return static_cast<int>(product_column(p.layout, p.gate_order, p.features, p.gated, feature, up));
}

// z + bias of one element.
__device__ __forceinline__ float lora_before(const LoraParameters& p, int row, int expert, int feature,
                                             bool up) {
  const int64_t at = row * p.z_stride + lora_z_column(p, feature, up);
  const float z = p.z_bf16 ? tile::to_f32(static_cast<const __nv_bfloat16*>(p.z)[at])
                           : static_cast<const float*>(p.z)[at];
  if (!p.bias) return z;
  const int64_t of = int64_t{expert} * p.product_rows + lora_product_row(p, feature, up);
  return z + (p.bias_bf16 ? tile::to_f32(static_cast<const __nv_bfloat16*>(p.bias)[of])
                          : static_cast<const float*>(p.bias)[of]);
}

__device__ __forceinline__ tile::ActivationValues lora_activation(const LoraParameters& p, int expert) {
  if (!p.act_params) return p.act;
  const float* of = p.act_params + 3 * expert;
  return {p.act.which, of[0], of[1], of[2]};
}

__device__ __forceinline__ void lora_store(const LoraParameters& p, int row, int feature, float value) {
  const int64_t at = row * p.y_stride + feature;
  if (p.y_bf16) {
    static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(p.y)[at] = value;
  }
}

#endif  // __CUDACC__

}  // namespace sluice::cuda
