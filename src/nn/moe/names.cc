#include "nn/moe/names.h"

#include <charconv>
#include <set>

namespace sluice {
namespace {

// Sources: Hugging Face transformers, models/{gpt_oss,deepseek_v3,qwen3_moe,minimax_m2,llama4};
// openai/gpt-oss gpt_oss/torch/weights.py; deepseek-ai's inference code for DeepSeek-V4; NVIDIA's
// modeling_nemotron_h.py; vLLM's loaders for MiniMax-M3 and Mistral-Large-3; transformers 5.24's
// conversion_mapping.py for glm5_next and mistral_large4.
constexpr MoeNames kNames[] = {
    {.naming = MoeNaming::kGptOss,
     .storage = ExpertStorage::kFusedMxfp4,
     .gate_order = GateOrder::kInterleaved,
     .router = "model.layers.{L}.mlp.router.weight",
     .router_bias = "model.layers.{L}.mlp.router.bias",
     .up = "model.layers.{L}.mlp.experts.gate_up_proj_blocks",
     .down = "model.layers.{L}.mlp.experts.down_proj_blocks",
     .up_scale = "model.layers.{L}.mlp.experts.gate_up_proj_scales",
     .down_scale = "model.layers.{L}.mlp.experts.down_proj_scales",
     .up_bias = "model.layers.{L}.mlp.experts.gate_up_proj_bias",
     .down_bias = "model.layers.{L}.mlp.experts.down_proj_bias"},
    {.naming = MoeNaming::kGptOssOriginal,
     .storage = ExpertStorage::kFusedMxfp4,
     .gate_order = GateOrder::kInterleaved,
     .router = "block.{L}.mlp.gate.weight",
     .router_bias = "block.{L}.mlp.gate.bias",
     .up = "block.{L}.mlp.mlp1_weight.blocks",
     .down = "block.{L}.mlp.mlp2_weight.blocks",
     .up_scale = "block.{L}.mlp.mlp1_weight.scales",
     .down_scale = "block.{L}.mlp.mlp2_weight.scales",
     .up_bias = "block.{L}.mlp.mlp1_bias",
     .down_bias = "block.{L}.mlp.mlp2_bias"},
    {.naming = MoeNaming::kGptOssBf16,
     .storage = ExpertStorage::kFusedColumns,
     .gate_order = GateOrder::kInterleaved,
     .router = "model.layers.{L}.mlp.router.weight",
     .router_bias = "model.layers.{L}.mlp.router.bias",
     .up = "model.layers.{L}.mlp.experts.gate_up_proj",
     .down = "model.layers.{L}.mlp.experts.down_proj",
     .up_bias = "model.layers.{L}.mlp.experts.gate_up_proj_bias",
     .down_bias = "model.layers.{L}.mlp.experts.down_proj_bias"},
    {.naming = MoeNaming::kDeepSeekV4,
     .storage = ExpertStorage::kOneByOne,
     .router = "layers.{L}.ffn.gate.weight",
     .correction_bias = "layers.{L}.ffn.gate.bias",
     .hash_table = "layers.{L}.ffn.gate.tid2eid",
     .gate = "layers.{L}.ffn.experts.{E}.w1.weight",
     .up = "layers.{L}.ffn.experts.{E}.w3.weight",
     .down = "layers.{L}.ffn.experts.{E}.w2.weight",
     .shared_gate = "layers.{L}.ffn.shared_experts.w1.weight",
     .shared_up = "layers.{L}.ffn.shared_experts.w3.weight",
     .shared_down = "layers.{L}.ffn.shared_experts.w2.weight",
     .scales = ".scale"},
    {.naming = MoeNaming::kDeepSeekV3,
     .storage = ExpertStorage::kOneByOne,
     .router = "model.layers.{L}.mlp.gate.weight",
     .correction_bias = "model.layers.{L}.mlp.gate.e_score_correction_bias",
     .gate = "model.layers.{L}.mlp.experts.{E}.gate_proj.weight",
     .up = "model.layers.{L}.mlp.experts.{E}.up_proj.weight",
     .down = "model.layers.{L}.mlp.experts.{E}.down_proj.weight",
     .shared_gate = "model.layers.{L}.mlp.shared_experts.gate_proj.weight",
     .shared_up = "model.layers.{L}.mlp.shared_experts.up_proj.weight",
     .shared_down = "model.layers.{L}.mlp.shared_experts.down_proj.weight"},
    {.naming = MoeNaming::kQwen3Moe,
     .storage = ExpertStorage::kOneByOne,
     .router = "model.layers.{L}.mlp.gate.weight",
     .gate = "model.layers.{L}.mlp.experts.{E}.gate_proj.weight",
     .up = "model.layers.{L}.mlp.experts.{E}.up_proj.weight",
     .down = "model.layers.{L}.mlp.experts.{E}.down_proj.weight"},
    {.naming = MoeNaming::kNemotron3,
     .storage = ExpertStorage::kOneByOne,
     .router = "backbone.layers.{L}.mixer.gate.weight",
     .correction_bias = "backbone.layers.{L}.mixer.gate.e_score_correction_bias",
     .up = "backbone.layers.{L}.mixer.experts.{E}.up_proj.weight",
     .down = "backbone.layers.{L}.mixer.experts.{E}.down_proj.weight",
     .shared_up = "backbone.layers.{L}.mixer.shared_experts.up_proj.weight",
     .shared_down = "backbone.layers.{L}.mixer.shared_experts.down_proj.weight",
     .latent_in = "backbone.layers.{L}.mixer.fc1_latent_proj.weight",
     .latent_out = "backbone.layers.{L}.mixer.fc2_latent_proj.weight"},
    {.naming = MoeNaming::kMiniMaxM2,
     .storage = ExpertStorage::kOneByOne,
     .router = "model.layers.{L}.block_sparse_moe.gate.weight",
     .correction_bias = "model.layers.{L}.block_sparse_moe.e_score_correction_bias",
     .gate = "model.layers.{L}.block_sparse_moe.experts.{E}.w1.weight",
     .up = "model.layers.{L}.block_sparse_moe.experts.{E}.w3.weight",
     .down = "model.layers.{L}.block_sparse_moe.experts.{E}.w2.weight"},
    {.naming = MoeNaming::kLlama4,
     .storage = ExpertStorage::kFusedColumns,
     .router = "language_model.model.layers.{L}.feed_forward.router.weight",
     .up = "language_model.model.layers.{L}.feed_forward.experts.gate_up_proj",
     .down = "language_model.model.layers.{L}.feed_forward.experts.down_proj",
     .shared_gate = "language_model.model.layers.{L}.feed_forward.shared_expert.gate_proj.weight",
     .shared_up = "language_model.model.layers.{L}.feed_forward.shared_expert.up_proj.weight",
     .shared_down = "language_model.model.layers.{L}.feed_forward.shared_expert.down_proj.weight"},
    {.naming = MoeNaming::kMiniMaxM3,
     .storage = ExpertStorage::kOneByOne,
     .router = "language_model.model.layers.{L}.block_sparse_moe.gate.weight",
     .correction_bias = "language_model.model.layers.{L}.block_sparse_moe.e_score_correction_bias",
     .gate = "language_model.model.layers.{L}.block_sparse_moe.experts.{E}.w1.weight",
     .up = "language_model.model.layers.{L}.block_sparse_moe.experts.{E}.w3.weight",
     .down = "language_model.model.layers.{L}.block_sparse_moe.experts.{E}.w2.weight",
     .shared_gate = "language_model.model.layers.{L}.block_sparse_moe.shared_experts.gate_proj.weight",
     .shared_up = "language_model.model.layers.{L}.block_sparse_moe.shared_experts.up_proj.weight",
     .shared_down = "language_model.model.layers.{L}.block_sparse_moe.shared_experts.down_proj.weight"},
    {.naming = MoeNaming::kMistralLarge3,
     .storage = ExpertStorage::kOneByOne,
     .router = "layers.{L}.gate.weight",
     .gate = "layers.{L}.experts.{E}.w1.weight",
     .up = "layers.{L}.experts.{E}.w3.weight",
     .down = "layers.{L}.experts.{E}.w2.weight",
     .shared_gate = "layers.{L}.shared_experts.w1.weight",
     .shared_up = "layers.{L}.shared_experts.w3.weight",
     .shared_down = "layers.{L}.shared_experts.w2.weight"},
    {.naming = MoeNaming::kGlm5Next,
     .storage = ExpertStorage::kOneByOne,
     .router = "model.language_model.layers.{L}.mlp.gate.weight",
     .correction_bias = "model.language_model.layers.{L}.mlp.gate.e_score_correction_bias",
     .gate = "model.language_model.layers.{L}.mlp.experts.{E}.gate_proj.weight",
     .up = "model.language_model.layers.{L}.mlp.experts.{E}.up_proj.weight",
     .down = "model.language_model.layers.{L}.mlp.experts.{E}.down_proj.weight",
     .shared_gate = "model.language_model.layers.{L}.mlp.shared_experts.gate_proj.weight",
     .shared_up = "model.language_model.layers.{L}.mlp.shared_experts.up_proj.weight",
     .shared_down = "model.language_model.layers.{L}.mlp.shared_experts.down_proj.weight"},
    {.naming = MoeNaming::kDenseMlp,
     .storage = ExpertStorage::kOneByOne,
     .gate = "model.layers.{L}.mlp.gate_proj.weight",
     .up = "model.layers.{L}.mlp.up_proj.weight",
     .down = "model.layers.{L}.mlp.down_proj.weight"},
    {.naming = MoeNaming::kDraftLayer,
     .storage = ExpertStorage::kOneByOne,
     .gate = "layers.{L}.mlp.gate_proj.weight",
     .up = "layers.{L}.mlp.up_proj.weight",
     .down = "layers.{L}.mlp.down_proj.weight"},
    {.naming = MoeNaming::kDraftMidlayer,
     .storage = ExpertStorage::kOneByOne,
     .gate = "midlayer.mlp.gate_proj.weight",
     .up = "midlayer.mlp.up_proj.weight",
     .down = "midlayer.mlp.down_proj.weight"},
    {.naming = MoeNaming::kDraftModelMidlayer,
     .storage = ExpertStorage::kOneByOne,
     .gate = "model.midlayer.mlp.gate_proj.weight",
     .up = "model.midlayer.mlp.up_proj.weight",
     .down = "model.midlayer.mlp.down_proj.weight"},
    {.naming = MoeNaming::kPlain,
     .storage = ExpertStorage::kFusedRows,
     .router = "router",
     .router_bias = "router_bias",
     .correction_bias = "correction_bias",
     .hash_table = "hash_table",
     .up = "experts.up",
     .down = "experts.down",
     .up_scale = "experts.up_scale",
     .down_scale = "experts.down_scale",
     .up_row_scale = "experts.up_row_scale",
     .down_row_scale = "experts.down_row_scale",
     .up_bias = "experts.up_bias",
     .down_bias = "experts.down_bias",
     .shared_gate = "shared.gate",
     .shared_up = "shared.up",
     .shared_down = "shared.down",
     .latent_in = "latent.in",
     .latent_out = "latent.out"},
};

// Whether the name matches the pattern. Sets *layer to the number at the placeholder.
bool matches(std::string_view pattern, std::string_view name, int64_t* layer) {
  while (!pattern.empty()) {
    if (pattern.front() != '{') {
      if (name.empty() || name.front() != pattern.front()) return false;
      pattern.remove_prefix(1), name.remove_prefix(1);
      continue;
    }
    int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error != std::errc() || number < 0) return false;
    if (pattern[1] == 'L') *layer = number;
    name.remove_prefix(static_cast<size_t>(end - name.data()));
    pattern.remove_prefix(3);
  }
  return name.empty();
}

std::set<int64_t> layers_with(const Checkpoint& checkpoint, std::string_view pattern) {
  std::set<int64_t> out;
  int64_t layer = 0;
  for (const CheckpointTensor& t : checkpoint.tensors())
    if (matches(pattern, t.name, &layer)) out.insert(layer);
  return out;
}

}  // namespace

const MoeNames& moe_names(MoeNaming naming) {
  for (const MoeNames& n : kNames)
    if (n.naming == naming) return n;
  return kNames[0];
}

std::string tensor_name(std::string_view pattern, int64_t layer, int64_t expert) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '{') {
      out += pattern[i];
      continue;
    }
    out += std::to_string(pattern[i + 1] == 'L' ? layer : expert);
    i += 2;
  }
  return out;
}

std::vector<int64_t> moe_layers(const Checkpoint& checkpoint, MoeNaming naming) {
  const std::string_view down = moe_names(naming).down;
  std::set<int64_t> layers = layers_with(checkpoint, down);
  // FP4 codes of compressed-tensors
  if (down.ends_with(".weight")) layers.merge(layers_with(checkpoint, std::string(down) + "_packed"));
  return {layers.begin(), layers.end()};
}

Result<MoeNaming> detect(const Checkpoint& checkpoint) {
  std::string known;
  for (const MoeNames& n : kNames) {
    if (!has_experts(n.naming)) continue;
    known += (known.empty() ? "" : ", ") + std::string(word(n.naming)) + " (" + tensor_name(n.down, 0) + ")";
    // The namings of DeepSeek-V3 and Qwen3 differ only in the correction bias, so the naming with a bias
    // comes first and is chosen only if there is a bias. Likewise, checkpoints of Qwen3.5 may name experts as
    // GLM-5.3-Flash's do. DeepSeek-V4 also has layers without a bias (hash routing), but its other names are
    // unique.
    const bool told_by_bias = n.naming == MoeNaming::kDeepSeekV3 || n.naming == MoeNaming::kGlm5Next;
    if (moe_layers(checkpoint, n.naming).empty()) continue;
    if (told_by_bias && layers_with(checkpoint, n.correction_bias).empty()) continue;
    return n.naming;
  }
  return unsupported(checkpoint.path() + ": wanted experts named as one of " + known + "; found none among " +
                     std::to_string(checkpoint.tensors().size()) + " tensors");
}

}  // namespace sluice
