// A table of the tensor names of MoE layers in published checkpoints.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/weight_layout.h"
#include "weights/checkpoint.h"

namespace sluice {

enum class MoeNaming : uint8_t {
  kGptOss,          // Hugging Face: model.layers.L.mlp.experts.gate_up_proj_blocks
  kGptOssOriginal,  // OpenAI's original files: block.L.mlp.mlp1_weight.blocks
  kGptOssBf16,      // Hugging Face, bf16: model.layers.L.mlp.experts.gate_up_proj
  kDeepSeekV4,      // layers.L.ffn.experts.E.w1.weight
  kDeepSeekV3,      // model.layers.L.mlp.experts.E.gate_proj.weight, with a correction bias
  kQwen3Moe,        // the names of kDeepSeekV3, without a correction bias
  kNemotron3,       // backbone.layers.L.mixer.experts.E.up_proj.weight; with or without latent projections
  kMiniMaxM2,       // model.layers.L.block_sparse_moe.experts.E.w1.weight
  kLlama4,          // language_model.model.layers.L.feed_forward.experts.gate_up_proj
  kMiniMaxM3,      // language_model.model.layers.L.block_sparse_moe.experts.E.w1.weight, with a shared expert
  kMistralLarge3,  // layers.L.experts.E.w1.weight: also Mistral Small 4 and Large 4
  kGlm5Next,       // the names of kDeepSeekV3, with model.language_model.layers.L: GLM-5.3-Flash
  kPlain,          // Sluice's names for a single layer: experts.up, with gate and up in the config's order
  // Dense MLPs; these must come last (has_experts).
  kDenseMlp,            // model.layers.L.mlp.gate_proj.weight: dense layers of MoE models
  kDraftLayer,          // layers.L.mlp.gate_proj.weight: draft layers (nn/draft_layer.h)
  kDraftMidlayer,       // midlayer.mlp.gate_proj.weight
  kDraftModelMidlayer,  // model.midlayer.mlp.gate_proj.weight
};
constexpr bool has_experts(MoeNaming naming) { return naming < MoeNaming::kDenseMlp; }
template <>
struct EnumWords<MoeNaming> {
  static constexpr std::string_view words[] = {
      "gpt_oss",   "gpt_oss_original", "gpt_oss_bf16", "deepseek_v4",    "deepseek_v3",         "qwen3_moe",
      "nemotron3", "minimax_m2",       "llama4",       "minimax_m3",     "mistral_large_3",     "glm5_next",
      "plain",     "dense_mlp",        "draft_layer",  "draft_midlayer", "draft_model_midlayer"};
};

// How the experts of a layer are stored.
enum class ExpertStorage : uint8_t {
  kFusedMxfp4,  // U8 [experts, rows, width / 32, 16], scales U8 [experts, rows, width / 32]; gate and up together
  kFusedColumns,  // BF16 [experts, width, rows]: transposed; gate and up in one tensor
  // [experts, rows, width]; gate and up in one tensor. BF16, or codes: F8_E4M3, F4, or e2m1 as I8 or U8
  // [experts, rows, width / 2]. Codes have column scales [experts, ...] as in weights/stored_matrix.h, or f32
  // scales [experts, rows] or [experts], or both.
  kFusedRows,
  kOneByOne,  // one tensor [rows, width] per matrix and expert, in any form of weights/stored_matrix.h
};

// Name patterns, with {L} for the layer and {E} for the expert. Empty: the naming has no such tensor.
struct MoeNames {
  MoeNaming naming;
  ExpertStorage storage;
  // order in fused tensors and in biases; kFusedRows uses MoeConfig::gate_order instead
  GateOrder gate_order = GateOrder::kGateFirst;
  std::string_view router = {}, router_bias = {}, correction_bias = {}, hash_table = {};
  std::string_view gate = {}, up = {}, down = {};   // in fused tensors, `up` also holds the gates
  std::string_view up_scale = {}, down_scale = {};  // scales of fused codes
  std::string_view up_row_scale = {}, down_row_scale = {};
  std::string_view up_bias = {}, down_bias = {};  // [experts, rows]
  std::string_view shared_gate = {}, shared_up = {},
                   shared_down = {};  // in any form of weights/stored_matrix.h
  // kOneByOne: the suffix of scale tensors by which this naming's usual form is chosen; empty: each format's most common form
  std::string_view scales = {};
  std::string_view latent_in = {}, latent_out = {};  // BF16 [latent, hidden] and [hidden, latent]
};
const MoeNames& moe_names(MoeNaming naming);

// Replaces {L} and {E} in a pattern.
std::string tensor_name(std::string_view pattern, int64_t layer, int64_t expert = 0);

// Detects the naming of a checkpoint's tensors. kUnsupported lists the known namings, each with an example
// tensor.
Result<MoeNaming> detect(const Checkpoint& checkpoint);
// The MoE layers that the checkpoint has under this naming, ascending.
std::vector<int64_t> moe_layers(const Checkpoint& checkpoint, MoeNaming naming);

}  // namespace sluice
