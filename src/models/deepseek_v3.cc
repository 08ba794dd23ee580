// DeepSeek V3: latent attention with YaRN; first dense layers, then MoE layers with a shared expert and
// grouped routing by sigmoid scores and a correction bias. Experts may have any format. Moonlight and Kimi K2
// have the same architecture.
//
// Source  deepseek-ai/DeepSeek-V3 config.json and inference/model.py; Hugging Face transformers
//         models/deepseek_v3 (configuration, arithmetic and names), modeling_rope_utils.py.
#include "models/family.h"
#include "models/quantization.h"
#include "models/read_config.h"
#include "models/read_decoder.h"
#include "ops/reference/route_bounds.h"

namespace sluice {
namespace of_deepseek_v3 {
namespace {

const std::string kModels = "DeepSeek V3";
constexpr double kLatentEps = 1e-6;  // epsilon of the latents' norms, independent of rms_norm_eps

// Multiplies the attention scale by the square of YaRN's factor for mscale_all_dim. read_rope() has already
// set the scale of cos and sin.
Status stretch_scores(const JsonAt& config, const RopeScaling& rope, AttentionConfig* a) {
  const char* const key = rope_key(config);
  if (!key) return {};
  const auto scaling = config.at(key);
  if (!scaling.ok()) return scaling.status();
  double all_dim = 0;
  ConfigReader r{scaling.value()};
  r.number("mscale_all_dim", 0, 1e3, 0, &all_dim);
  SLUICE_TRY(r.status);
  const double stretch = all_dim > 0 ? yarn_stretch(rope.factor, all_dim) : 1;
  return a->scale *= stretch * stretch, Status{};
}

Status read_attention(const JsonAt& config, int64_t hidden, AttentionConfig* a) {
  SLUICE_TRY(must_be(config, "attention_bias", false, kModels));
  SLUICE_TRY(must_be(config, "rope_interleave", true, kModels));
  LatentShape shape{.q_rank = 0, .eps = kLatentEps};
  int64_t heads = 0, rotary = 0;
  ConfigReader r{config};
  r.integer("num_attention_heads", 1, 1024, &heads);
  // null means that queries have no latent. A missing key is an error: transformers would use the published
  // model's rank.
  const bool none = config.value().contains("q_lora_rank") && config.value()["q_lora_rank"].is_null();
  if (!none) r.integer("q_lora_rank", 1, 65536, &shape.q_rank);
  r.integer("kv_lora_rank", 1, 1022, &shape.rank);
  r.integer("qk_nope_head_dim", 1, 1024, &shape.nope);
  r.integer("qk_rope_head_dim", 2, 1022, &rotary);
  r.integer("v_head_dim", 1, 1024, &shape.v_dim);
  SLUICE_TRY(r.status);
  if (rotary % 2) return refused(config, "qk_rope_head_dim", "an even number (elements rotate in pairs)");
  if (shape.rank + rotary > 1024)
    return refused(
        config, "kv_lora_rank",
        "at most " + std::to_string(1024 - rotary) + " with qk_rope_head_dim = " + std::to_string(rotary));
  if (config.has("num_key_value_heads"))
    SLUICE_TRY(must_be_also(config, "num_key_value_heads", "num_attention_heads", heads));
  *a = latent_attention(hidden, heads, rotary, shape);
  return {};
}

Status read_experts(const JsonAt& config, int64_t hidden, MoeConfig* moe) {
  SLUICE_TRY(must_be(config, "scoring_func", "sigmoid", kModels));
  SLUICE_TRY(must_be(config, "topk_method", "noaux_tc", kModels));
  SLUICE_TRY(must_be(config, "norm_topk_prob", true, kModels));
  SLUICE_TRY(must_be(config, "moe_layer_freq", 1, kModels));
  *moe = known_moe("deepseek-v3").value();  // sets the arithmetic; the config sets the shape
  moe->hidden = hidden;
  moe->residual = true;
  int64_t shared = 1;
  ConfigReader r{config};
  r.integer("moe_intermediate_size", 1, 65536, &moe->intermediate);
  r.integer("n_routed_experts", 1, kRoutedExpertsMax, &moe->experts);
  r.integer("num_experts_per_tok", 1, kRoutedTopKMax, &moe->top_k);
  r.integer("n_group", 1, kRoutedExpertsMax, &moe->groups);
  r.integer("topk_group", 1, kRoutedExpertsMax, &moe->topk_groups);
  if (config.value().contains("n_shared_experts")) r.integer("n_shared_experts", 1, 64, &shared);
  r.number("routed_scaling_factor", 1e-6, 1e6, 2.5, &moe->scale);
  SLUICE_TRY(r.status);
  moe->shared_intermediate = shared * moe->intermediate;
  moe->shared_as_slots = shared_fits_slots(*moe);
  if (moe->experts % moe->groups)
    return refused(config, "n_group", "a divisor of n_routed_experts = " + std::to_string(moe->experts));
  if (moe->topk_groups > moe->groups)
    return refused(config, "topk_group", "at most n_group = " + std::to_string(moe->groups));
  const int64_t open = moe->experts / moe->groups * moe->topk_groups;
  if (moe->top_k > open)
    return refused(config, "num_experts_per_tok",
                   "at most the " + std::to_string(open) + " experts of topk_group groups");
  return {};
}

Result<ModelConfig> read(const JsonAt& config) {
  for (const char* key : {"index_topk", "compression_config"})
    if (config.has(key)) return unsupported(refused(config, key, "no such key").message);
  SLUICE_TRY(must_be(config, "hidden_act", "silu", kModels));
  ModelConfig out;
  out.architecture = "DeepseekV3ForCausalLM";
  DecoderConfig& d = out.decoder;
  int64_t layers = 0, dense_layers = 0;
  ConfigReader r{config};
  r.integer("vocab_size", 1, 1 << 24, &d.vocab);
  r.integer("hidden_size", 1, 65536, &d.hidden);
  r.integer("num_hidden_layers", 1, 1000, &layers);
  r.integer("first_k_dense_replace", 0, 1000, &dense_layers);
  r.integer("max_position_embeddings", 1, INT32_MAX, &out.context);
  if (config.has("num_nextn_predict_layers")) r.integer("num_nextn_predict_layers", 0, 100, &out.mtp_layers);
  r.number("rms_norm_eps", 1e-12, 1, 1e-6, &d.eps);
  SLUICE_TRY(r.status);
  if (dense_layers >= layers)
    return refused(config, "first_k_dense_replace",
                   "less than num_hidden_layers = " + std::to_string(layers));
  SLUICE_TRY(read_tied(config, &out));
  SLUICE_TRY(read_rope(config, {.models = kModels, .unsaid = {.theta = 10000}, .context = 4096}, &d.rope));
  LayerConfig with_experts, dense;
  SLUICE_TRY(read_attention(config, d.hidden, &with_experts.attention));
  SLUICE_TRY(stretch_scores(config, d.rope, &with_experts.attention));
  SLUICE_TRY(read_experts(config, d.hidden, &with_experts.mlp));
  dense.attention = with_experts.attention;
  if (dense_layers > 0) SLUICE_TRY(read_dense_mlp(config, d.hidden, &dense.mlp));
  for (int64_t layer = 0; layer < layers; ++layer)
    d.layers.push_back(layer < dense_layers ? dense : with_experts);
  return out;
}

std::vector<MoeNaming> namings(const ModelConfig&) { return {MoeNaming::kDeepSeekV3}; }
Status fit(const Checkpoint& files, ModelConfig* config) {
  return fit_formats_to_files(files, MoeNaming::kDeepSeekV3, config);
}

}  // namespace
}  // namespace of_deepseek_v3

extern const Family deepseek_v3 = {.architecture = "DeepseekV3ForCausalLM",
                                   .model_type = "deepseek_v3",
                                   .other_type = "kimi_k2",
                                   .read = of_deepseek_v3::read,
                                   .tensors = hugging_face_tensors,
                                   .namings = of_deepseek_v3::namings,
                                   .fit = of_deepseek_v3::fit,
                                   .formats = true};

}  // namespace sluice
