// Layers with random weights of suitable magnitude in host memory. Packed weights are filled in packed form.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "base/random.h"
#include "cases/expert_gemm_scaled.h"
#include "harness/cases.h"
#include "harness/memory.h"
#include "nn/decoder.h"

namespace sluice::test {

// Owns tensors for the duration of a test.
class TensorStore {
 public:
  Tensor add(const SlotSpec& spec) {
    memory_.push_back(std::make_unique<GuardedTensor>(spec, Spread::kContiguous));
    return memory_.back()->view();
  }

 private:
  std::vector<std::unique_ptr<GuardedTensor>> memory_;
};

// log2 of the factor that gives sums over `width` weights a magnitude of one.
inline int gain_of(int64_t width) {
  return -static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(width)))));
}

inline void fill_bf16(void* data, int64_t count, int gain, Random& random) {
  for (int64_t i = 0; i < count; ++i)
    static_cast<BF16*>(data)[i] = to_bf16(static_cast<float>(std::ldexp(random.normal(), gain)));
}

// The routed or shared experts of a format other than bf16 and MXFP4: one expert after the other, from rows in the checkpoint's
// order, so that codes and scales belong together.
inline void fill_scaled_matrices(const ExpertGemm::Problem& p, const Tensor& w, const Tensor& scales,
                                 Random& random) {
  const int64_t code_bytes = ExpertGemm::packed_bytes(p), scale_bytes = ExpertGemm::packed_scale_bytes(p);
  for (int64_t e = 0; e < p.experts; ++e)
    fill_scaled_expert(
        p, Fill::kNormal, make_tensor(w.as<uint8_t>() + e * code_bytes, DType::kU8, {code_bytes}),
        make_tensor(scales.as<uint8_t>() + e * scale_bytes, DType::kU8, {scale_bytes}), random);
}
inline bool is_scaled(WeightFormat f) { return f.scaled() && f != WeightFormat{DType::kE2M1}; }

inline void fill_weight(const MoeConfig& c, const SlotSpec& spec, const Tensor& t, Random& random) {
  const int gain = gain_of(c.hidden);
  const bool fp4 = (spec.name.starts_with("shared")   ? c.shared_w
                    : spec.name.starts_with("latent") ? DType::kBF16
                                                      : c.expert_w) == DType::kE2M1;
  const bool scales = spec.name.ends_with("up_scale") || spec.name.ends_with("down_scale");
  if (scales && c.layout == WeightLayout::kFragments) {
    // First relative scales, then each row's largest scale; the matrix must have no padding
    // (ops/fragment_layout.h).
    const ExpertProblems p = expert_problems(c);
    const bool up = spec.name.ends_with("up_scale"), shared = spec.name.starts_with("shared");
    const ExpertGemm::Problem& of = shared ? (up ? p.shared_up : p.shared_down) : up ? p.up : p.down;
    const int64_t top = ExpertGemm::fragments(of).top_begin(ExpertGemm::format(of));
    set_each(t, [&](int64_t, int64_t i) { return i < top ? 254 - random.integer(0, 2) : 127 + gain; });
  } else if (scales) {
    set_each(t, [&](int64_t, int64_t) { return 126 + gain + random.integer(-1, 1); });
  } else if (t.dtype == DType::kU8 && !fp4) {
    fill_bf16(t.data, elements_of(t) / 2, gain, random);
  } else if (t.dtype == DType::kU8) {
    set_each(t, [&](int64_t, int64_t) { return random.integer(0, 255); });
  } else if (spec.name == "hash_table") {
    set_each(t, [&](int64_t r, int64_t k) { return (r * 5 + k) % c.experts; });
  } else if (spec.name == "experts.act_params") {
    constexpr double kMin[] = {1, 0, 0.25}, kMore[] = {1, 1, 3};  // alpha, beta, limit
    set_each(t, [&](int64_t, int64_t i) { return kMin[i] + kMore[i] * random.uniform(); });
  } else if (spec.name == "expert_map") {
    set_each(t, [&](int64_t, int64_t e) { return e; });
  } else {
    const bool wide = spec.name == "router" || spec.name.ends_with("lora_a");
    fill_floats(t, Fill::kNormal, random, wide ? std::ldexp(1, gain) : 0.5);
  }
}

inline void fill_scaled_weights(const MoeConfig& c, Random& random, MoeWeights* weights) {
  const ExpertProblems p = expert_problems(c);
  if (is_scaled({c.expert_w, c.expert_scales})) {
    fill_scaled_matrices(p.up, weights->experts.up, weights->experts.up_scale, random);
    fill_scaled_matrices(p.down, weights->experts.down, weights->experts.down_scale, random);
  }
  if (is_scaled({c.shared_w, c.shared_scales}) && weights->shared.up.present()) {
    fill_scaled_matrices(p.shared_up, weights->shared.up, weights->shared.up_scale, random);
    fill_scaled_matrices(p.shared_down, weights->shared.down, weights->shared.down_scale, random);
  }
}

inline void add_moe_weights(const MoeConfig& c, Random& random, TensorStore* store, MoeWeights* weights) {
  for (auto& [spec, tensor] : weight_slots(c, weights))
    if (spec.used) fill_weight(c, spec, *tensor = store->add(spec), random);
  fill_scaled_weights(c, random, weights);
}

inline void add_decoder_weights(const DecoderConfig& c, Random& random, TensorStore* store,
                                NamedWeights* weights) {
  for (const HeldSlot& held : decoder_weights(c)) {
    if (weights->operator()(held.layer, held.name).present()) continue;  // already set with the layer's MLP
    const bool of_mlp = held.layer >= 0 && !held.name.starts_with("attention.") && held.name != "mlp.norm";
    if (of_mlp) {
      const MoeConfig& mlp = c.layers[static_cast<size_t>(held.layer)].mlp;
      MoeWeights of_layer;
      add_moe_weights(mlp, random, store, &of_layer);
      weights->set_moe(held.layer, mlp, of_layer);
      continue;
    }
    const Tensor t = store->add(held.spec);
    const AttentionConfig& a = c.layers[static_cast<size_t>(std::max(held.layer, 0))].attention;
    const int64_t width = held.name == "attention.o" ? a.heads * a.head_dim : c.hidden;
    const bool matrix = held.name != "embedding" && (t.dtype == DType::kU8 || t.rank > 1);
    const int gain = matrix ? gain_of(width) : held.name.ends_with("_bias") ? -1 : 0;
    fill_bf16(t.data, bytes_of(t.dtype, elements_of(t)) / 2, gain, random);
    weights->set(held.layer, held.name, t);
  }
}

}  // namespace sluice::test
