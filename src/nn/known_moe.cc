#include "nn/moe.h"

namespace sluice {
namespace {

struct Known {
  std::string_view name;
  MoeConfig config;
};

// Sources: each model's config.json and modelling code, as moe layers: hidden, intermediate, experts, top_k
// first.
const Known* known_table(size_t* count) {
  using A = Activation;
  using G = GateOrder;
  using R = RoutingMethod;
  constexpr DType kBF = DType::kBF16;
  static const Known table[] = {
      {"gpt-oss-20b",
       {.hidden = 2880,
        .intermediate = 2880,
        .experts = 32,
        .top_k = 4,
        .logits = kBF,
        .router_bias = true,
        .act = A::kSwiGluClamped,
        .alpha = 1.702,
        .beta = 1,
        .limit = 7,
        .up_bias = true,
        .down_bias = true}},
      {"gpt-oss-120b",
       {.hidden = 2880,
        .intermediate = 2880,
        .experts = 128,
        .top_k = 4,
        .logits = kBF,
        .router_bias = true,
        .act = A::kSwiGluClamped,
        .alpha = 1.702,
        .beta = 1,
        .limit = 7,
        .up_bias = true,
        .down_bias = true}},
      {"deepseek-v4-flash",
       {.hidden = 4096,
        .intermediate = 2048,
        .experts = 256,
        .top_k = 6,
        .method = R::kSqrtSoftplus,
        .correction_bias = true,
        .scale = 1.5,
        .gate_order = G::kGateFirst,
        .act = A::kSwiGluClamped,
        .limit = 10,
        .shared_intermediate = 2048}},
      {"deepseek-v4-flash-hash",
       {.hidden = 4096,
        .intermediate = 2048,
        .experts = 256,
        .top_k = 6,
        .method = R::kHash,
        .scale = 1.5,
        .hash_vocab = 129280,
        .gate_order = G::kGateFirst,
        .act = A::kSwiGluClamped,
        .limit = 10,
        .shared_intermediate = 2048}},
      {"deepseek-v4-pro",
       {.hidden = 7168,
        .intermediate = 3072,
        .experts = 384,
        .top_k = 6,
        .method = R::kSqrtSoftplus,
        .correction_bias = true,
        .scale = 2.5,
        .gate_order = G::kGateFirst,
        .act = A::kSwiGluClamped,
        .limit = 10,
        .shared_intermediate = 3072}},
      {"deepseek-v3",
       {.hidden = 7168,
        .intermediate = 2048,
        .experts = 256,
        .top_k = 8,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .groups = 8,
        .topk_groups = 4,
        .scale = 2.5,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 2048,
        .shared_as_slots = true}},
      {"kimi-k2",
       {.hidden = 7168,
        .intermediate = 2048,
        .experts = 384,
        .top_k = 8,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .scale = 2.827,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 2048}},
      {"glm-4.5",
       {.hidden = 5120,
        .intermediate = 1536,
        .experts = 160,
        .top_k = 8,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .scale = 2.5,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 1536}},
      {"glm-4.5-air",
       {.hidden = 4096,
        .intermediate = 1408,
        .experts = 128,
        .top_k = 8,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .scale = 1,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 1408}},
      {"glm-5",
       {.hidden = 6144,
        .intermediate = 2048,
        .experts = 256,
        .top_k = 8,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .scale = 2.5,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 2048}},
      {"qwen3-30b-a3b",
       {.hidden = 2048,
        .intermediate = 768,
        .experts = 128,
        .top_k = 8,
        .method = R::kRenormalizeNaive,
        .expert_w = kBF,
        .gate_order = G::kGateFirst}},
      {"qwen3-235b-a22b",
       {.hidden = 4096,
        .intermediate = 1536,
        .experts = 128,
        .top_k = 8,
        .method = R::kRenormalizeNaive,
        .expert_w = kBF,
        .gate_order = G::kGateFirst}},
      {"nemotron-3-nano",
       {.hidden = 2688,
        .intermediate = 1856,
        .experts = 128,
        .top_k = 6,
        .method = R::kDeepSeekV3,
        .correction_bias = true,
        .scale = 2.5,
        .expert_w = kBF,
        .act = A::kRelu2,
        .shared_intermediate = 3712}},
      {"minimax-m2",
       {.hidden = 3072,
        .intermediate = 1536,
        .experts = 256,
        .top_k = 8,
        .router_w = DType::kF32,
        .method = R::kMiniMax2,
        .correction_bias = true,
        .expert_w = kBF,
        .gate_order = G::kGateFirst}},
      {"llama-4-scout",
       {.hidden = 5120,
        .intermediate = 8192,
        .experts = 16,
        .top_k = 1,
        .method = R::kLlama4,
        .weight_on_input = true,
        .expert_w = kBF,
        .gate_order = G::kGateFirst,
        .shared_intermediate = 8192}},
  };
  *count = std::size(table);
  return table;
}

}  // namespace

std::string known_moe_names() {
  size_t count = 0;
  const Known* table = known_table(&count);
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i ? ", " : "") + std::string(table[i].name);
  return out;
}

Result<MoeConfig> known_moe(std::string_view model) {
  size_t count = 0;
  const Known* table = known_table(&count);
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    if (table[i].name == model) return table[i].config;
    names.emplace_back(table[i].name);
  }
  const std::string near = nearest(model, names);
  return invalid("model: wanted one of " + known_moe_names() + ", found '" + std::string(model) + "'" +
                 (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

}  // namespace sluice
