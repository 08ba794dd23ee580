// Qwen3-MoE: attention with per-head norms of queries and keys before the rotary embedding; experts in any
// format, and a dense MLP in the layers that the config names.
//
// Source  Hugging Face transformers models/qwen3_moe (configuration, arithmetic and names).
#include <algorithm>
#include <string_view>

#include "models/family.h"
#include "models/quantization.h"
#include "models/read_config.h"
#include "models/read_decoder.h"

namespace sluice {
namespace of_qwen3 {
namespace {

const std::string kModels = "Qwen3-MoE";

// Rejects layer variants that no published model uses.
Status need_plain_layers(const JsonAt& config) {
  SLUICE_TRY(must_be(config, "hidden_act", "silu", kModels));
  SLUICE_TRY(must_be(config, "use_sliding_window", false, kModels));
  if (const char* key = "dual_chunk_attention_config"; config.has(key))
    return unsupported(refused(config, key, "no such key").message);
  if (!config.has("layer_types")) return {};
  const auto types = config.at("layer_types");
  if (!types.ok()) return types.status();
  const auto items = types.value().items();
  if (!items.ok()) return items.status();
  for (const JsonAt& item : items.value())
    if (item.value() != "full_attention")
      return unsupported(item.wrong("full_attention, the only value that Qwen3-MoE layers have").message);
  return {};
}

Status read_attention(const JsonAt& config, int64_t hidden, double eps, AttentionConfig* a) {
  *a = {.hidden = hidden, .qk_norm = true, .qk_norm_eps = eps};
  const auto bias = config.boolean("attention_bias", false);
  if (!bias.ok()) return bias.status();
  a->qkv_bias = a->o_bias = bias.value();
  return read_heads(config, HeadDim::kMayBeMissing, a);
}

Status read_experts(const JsonAt& config, int64_t hidden, MoeConfig* moe) {
  *moe = known_moe("qwen3-30b-a3b").value();  // sets the arithmetic; the config sets the shape
  moe->hidden = hidden;
  moe->residual = true;
  ConfigReader r{config};
  // transformers 5 writes num_local_experts.
  const std::string experts = config.has("num_experts") ? "num_experts" : "num_local_experts";
  r.integer("moe_intermediate_size", 1, 65536, &moe->intermediate);
  r.integer(config.has(experts) ? experts : "num_experts", 1, 1024, &moe->experts);
  r.integer("num_experts_per_tok", 1, 1024, &moe->top_k);
  SLUICE_TRY(r.status);
  if (config.has("num_local_experts"))
    SLUICE_TRY(must_be_also(config, "num_local_experts", experts, moe->experts));
  if (moe->top_k > moe->experts)
    return refused(config, "num_experts_per_tok",
                   "at most " + experts + " = " + std::to_string(moe->experts));
  const auto renormalized = config.boolean("norm_topk_prob", false);
  if (!renormalized.ok()) return renormalized.status();
  moe->method = renormalized.value() ? RoutingMethod::kRenormalizeNaive : RoutingMethod::kDefault;
  return {};
}

// Which layers have a dense MLP: the layers in mlp_only_layers, and every layer i for which
// decoder_sparse_step does not divide i + 1.
Result<std::vector<bool>> read_dense_layers(const JsonAt& config, int64_t layers) {
  std::vector<bool> dense(static_cast<size_t>(layers));
  const auto step = config.integer("decoder_sparse_step", 1, 1000, 1);
  if (!step.ok()) return step.status();
  for (int64_t layer = 0; layer < layers; ++layer)
    dense[static_cast<size_t>(layer)] = (layer + 1) % step.value() != 0;
  if (layers < step.value())
    return refused(config, "decoder_sparse_step", "at most num_hidden_layers = " + std::to_string(layers));
  if (!config.has("mlp_only_layers")) return dense;
  const auto list = config.at("mlp_only_layers");
  if (!list.ok()) return list.status();
  const auto items = list.value().items();
  if (!items.ok()) return items.status();
  for (const JsonAt& item : items.value()) {
    const auto layer = item.integer(0, layers - 1);
    if (!layer.ok()) return layer.status();
    dense[static_cast<size_t>(layer.value())] = true;
  }
  if (std::find(dense.begin(), dense.end(), false) == dense.end())
    return list.value().wrong("a list that leaves at least one MoE layer");
  return dense;
}

Result<ModelConfig> read(const JsonAt& config) {
  SLUICE_TRY(need_plain_layers(config));
  ModelConfig out;
  out.architecture = "Qwen3MoeForCausalLM";
  DecoderConfig& d = out.decoder;
  int64_t layers = 0;
  ConfigReader r{config};
  r.integer("vocab_size", 1, 1 << 24, &d.vocab);
  r.integer("hidden_size", 1, 65536, &d.hidden);
  r.integer("num_hidden_layers", 1, 1000, &layers);
  r.integer("max_position_embeddings", 1, INT32_MAX, &out.context);
  r.number("rms_norm_eps", 1e-12, 1, 1e-6, &d.eps);
  SLUICE_TRY(r.status);
  SLUICE_TRY(read_tied(config, &out));
  SLUICE_TRY(read_rope(config, {.models = kModels, .unsaid = {.theta = 10000}, .context = 32768}, &d.rope));
  // Users add YaRN as the model card describes, which leaves max_position_embeddings unchanged.
  if (d.rope.factor > 1)
    out.context = static_cast<int64_t>(std::min(d.rope.factor * d.rope.original_context, double{INT32_MAX}));
  LayerConfig with_experts, dense;
  SLUICE_TRY(read_attention(config, d.hidden, d.eps, &with_experts.attention));
  SLUICE_TRY(read_experts(config, d.hidden, &with_experts.mlp));
  dense.attention = with_experts.attention;
  const auto is_dense = read_dense_layers(config, layers);
  if (!is_dense.ok()) return is_dense.status();
  if (std::find(is_dense.value().begin(), is_dense.value().end(), true) != is_dense.value().end())
    SLUICE_TRY(read_dense_mlp(config, d.hidden, &dense.mlp));
  for (const bool layer_is_dense : is_dense.value())
    d.layers.push_back(layer_is_dense ? dense : with_experts);
  return out;
}

std::vector<MoeNaming> namings(const ModelConfig&) { return {MoeNaming::kQwen3Moe}; }
Status fit(const Checkpoint& files, ModelConfig* config) {
  return fit_formats_to_files(files, MoeNaming::kQwen3Moe, config);
}

}  // namespace
}  // namespace of_qwen3

extern const Family qwen3_moe = {.architecture = "Qwen3MoeForCausalLM",
                                 .model_type = "qwen3_moe",
                                 .read = of_qwen3::read,
                                 .tensors = hugging_face_tensors,
                                 .namings = of_qwen3::namings,
                                 .fit = of_qwen3::fit,
                                 .formats = true};

}  // namespace sluice
