// Qwen3-MoE: attention whose queries and keys are normed head by head before they rotate, and bf16 experts in every layer.
//
// Source  Hugging Face transformers models/qwen3_moe (configuration, arithmetic and names).
#include <algorithm>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"
#include "models/read_decoder.h"

namespace sluice {
namespace {

const std::string kQwen3Models = "Qwen3-MoE";

// Ways to build a layer that no published model takes.
Status need_plain_layers(const JsonAt& config) {
  SLUICE_TRY(must_be(config, "hidden_act", "silu", kQwen3Models));
  SLUICE_TRY(must_be(config, "use_sliding_window", false, kQwen3Models));
  SLUICE_TRY(must_be(config, "decoder_sparse_step", 1, kQwen3Models));
  SLUICE_TRY(must_be(config, "mlp_only_layers", Json::array(), kQwen3Models));
  for (const char* key : {"dual_chunk_attention_config", "quantization_config"})
    if (config.has(key)) return unsupported(refused(config, key, "no such key").message);
  if (!config.has("layer_types")) return {};
  const auto types = config.at("layer_types");
  if (!types.ok()) return types.status();
  const auto items = types.value().items();
  if (!items.ok()) return items.status();
  for (const JsonAt& item : items.value())
    if (item.value() != "full_attention")
      return unsupported(item.wrong("full_attention, which is all that Qwen3-MoE layers have").message);
  return {};
}

Status read_attention_of_qwen3(const JsonAt& config, int64_t hidden, double eps, AttentionConfig* a) {
  *a = {.hidden = hidden, .qk_norm = true, .qk_norm_eps = eps};
  const auto bias = config.boolean("attention_bias", false);
  if (!bias.ok()) return bias.status();
  a->qkv_bias = a->o_bias = bias.value();
  return read_heads(config, HeadDim::kMayBeMissing, a);
}

Status read_experts_of_qwen3(const JsonAt& config, int64_t hidden, MoeConfig* moe) {
  *moe = known_moe("qwen3-30b-a3b").value();  // its arithmetic; the shape is the checkpoint's
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

Result<ModelConfig> read_qwen3_moe(const JsonAt& config) {
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
  d.kind.assign(static_cast<size_t>(layers), 0);
  d.attention.resize(1);
  SLUICE_TRY(read_attention_of_qwen3(config, d.hidden, d.eps, &d.attention.front()));
  SLUICE_TRY(
      read_rope(config, {.models = kQwen3Models, .unsaid = {.theta = 10000}, .context = 32768}, &d.rope));
  // The model's page adds YaRN to a config and leaves max_position_embeddings as it was.
  if (d.rope.factor > 1)
    out.context = static_cast<int64_t>(std::min(d.rope.factor * d.rope.original_context, double{INT32_MAX}));
  SLUICE_TRY(read_experts_of_qwen3(config, d.hidden, &d.moe));
  const auto tied = config.boolean("tie_word_embeddings", false);
  if (!tied.ok()) return tied.status();
  if (tied.value()) out.head = ModelConfig::Head::kTied;
  return out;
}

constexpr std::string_view kQwen3Embedding = "model.embed_tokens.weight", kQwen3Head = "lm_head.weight";

// Of one layer, beside its experts.
std::vector<TensorSpec> attention_of_qwen3(const AttentionConfig& a, int64_t layer) {
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  std::vector<TensorSpec> out;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, DecoderPart part,
                       int64_t first_row = 0) {
    out.push_back({"model.layers." + std::to_string(layer) + "." + name, StoredType::kBF16, std::move(shape),
                   part, layer, first_row});
  };
  const auto project = [&](const std::string& name, int64_t rows, int64_t first) {
    add("self_attn." + name + "_proj.weight", {rows, a.hidden}, DecoderPart::kQkv, first);
    if (a.qkv_bias) add("self_attn." + name + "_proj.bias", {rows}, DecoderPart::kQkvBias, first);
  };
  add("input_layernorm.weight", {a.hidden}, DecoderPart::kAttentionNorm);
  project("q", q, 0), project("k", kv, q), project("v", kv, q + kv);
  add("self_attn.q_norm.weight", {a.head_dim}, DecoderPart::kQNorm);
  add("self_attn.k_norm.weight", {a.head_dim}, DecoderPart::kKNorm);
  add("self_attn.o_proj.weight", {a.hidden, q}, DecoderPart::kO);
  if (a.o_bias) add("self_attn.o_proj.bias", {a.hidden}, DecoderPart::kOBias);
  add("post_attention_layernorm.weight", {a.hidden}, DecoderPart::kMoeNorm);
  return out;
}

std::vector<TensorSpec> tensors_of_qwen3_moe(const ModelConfig& config, MoeNaming naming) {
  const DecoderConfig& d = config.decoder;
  std::vector<TensorSpec> out;
  const auto add = [&](std::string_view name, std::vector<int64_t> shape, DecoderPart part) {
    out.push_back({std::string(name), StoredType::kBF16, std::move(shape), part, -1, 0});
  };
  add(kQwen3Embedding, {d.vocab, d.hidden}, DecoderPart::kEmbedding);
  for (int64_t layer = 0; layer < d.layers(); ++layer) {
    for (TensorSpec& spec : attention_of_qwen3(d.attention.front(), layer)) out.push_back(std::move(spec));
    for (TensorSpec& spec : moe_tensors(d.moe, naming, layer)) out.push_back(std::move(spec));
  }
  add("model.norm.weight", {d.hidden}, DecoderPart::kFinalNorm);
  add(config.head == ModelConfig::Head::kTied ? kQwen3Embedding : kQwen3Head, {d.vocab, d.hidden},
      DecoderPart::kLmHead);
  return out;
}

std::vector<MoeNaming> namings_of_qwen3_moe(const ModelConfig&) { return {MoeNaming::kQwen3Moe}; }

Status fit_qwen3_moe(const Checkpoint& files, ModelConfig* config) {
  if (files.find_if_there(kQwen3Head)) config->head = ModelConfig::Head::kOwn;
  return {};
}

}  // namespace

extern const Family qwen3_moe = {.architecture = "Qwen3MoeForCausalLM",
                                 .model_type = "qwen3_moe",
                                 .read = read_qwen3_moe,
                                 .tensors = tensors_of_qwen3_moe,
                                 .namings = namings_of_qwen3_moe,
                                 .fit = fit_qwen3_moe};

}  // namespace sluice
