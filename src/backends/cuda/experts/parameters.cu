// Converts a problem and its tensors to a kernel's parameters.
#if defined(__CUDACC__)
#include "backends/cuda/experts/parameters.cuh"

#include <limits>

namespace sluice::cuda {

ExpertParameters expert_parameters(const ExpertGemm::Problem& p, const ExpertGemm::Args& a) {
  const bool gated = is_gated(p.act);
  const FragmentShape shape = fragment_shape(p.features, gated, p.width);
  const auto aligned = [](const Tensor& t, int64_t row_bytes) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && row_bytes % 16 == 0);
  };
  const auto size = [](const Tensor& t) { return t.dtype == DType::kF32 ? int64_t{4} : int64_t{2}; };
  ExpertParameters out;
  out.x = a.x.as<const __nv_bfloat16>();
  out.w = a.w.as<const uint8_t>();
  out.w_scale = a.w_scale.as<const uint8_t>();
  out.bias = p.bias ? a.bias.data : nullptr;
  out.act_params = p.per_expert ? a.act_params.as<const float>() : nullptr;
  out.weights = p.weighted ? a.weights.as<const float>() : nullptr;
  out.row_begin = a.row_begin.as<const int32_t>();
  out.row_count = a.row_count.as<const int32_t>();
  out.order = a.order.as<const int32_t>();
  out.y = a.y.data;
  out.x_stride = a.x.stride[0], out.y_stride = a.y.stride[0];
  const WeightFormat format = ExpertGemm::format(p);
  out.w_bytes = shape.code_bytes(format), out.scale_bytes = shape.scale_bytes(format);
  out.top_begin = shape.top_begin(format);
  out.experts = static_cast<int>(p.experts), out.features = static_cast<int>(p.features);
  out.width = static_cast<int>(p.width), out.slots = static_cast<int>(p.slots);
  out.row_blocks = static_cast<int>(shape.row_blocks), out.k_blocks = static_cast<int>(shape.k_blocks);
  out.x_wide = aligned(a.x, a.x.stride[0] * size(a.x));
  out.y_wide = aligned(a.y, a.y.stride[0] * size(a.y)) && p.features % 8 == 0;
  out.bias_f32 = p.b == DType::kF32, out.y_f32 = p.y == DType::kF32;
  out.settled = p.settled;
  out.gate_order = p.gate_order;
  const bool limited = p.act != Activation::kSwiGlu;  // kSwiGlu is the clamped form without a clamp
  out.act = {p.act, limited ? static_cast<float>(p.alpha) : 1.f, limited ? static_cast<float>(p.beta) : 0.f,
             limited ? static_cast<float>(p.limit) : std::numeric_limits<float>::infinity()};
  return out;
}

}  // namespace sluice::cuda
#endif
