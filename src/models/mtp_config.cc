// Reads DeepSeek V3's config.json as far as its multi-token prediction layer needs it.
//
// Source  deepseek-ai/DeepSeek-V3 config.json, inference/model.py; Hugging Face transformers models/deepseek_v3,
//         modeling_rope_utils.py.
#include <cmath>

#include "models/mtp.h"
#include "models/read_config.h"

namespace sluice {
namespace {

const std::string kModels = "DeepSeek V3";

// Hugging Face writes rope_scaling and rope_theta; transformers 5 writes both into rope_parameters. Also
// sets the scale of the scores. With m(s) = yarn_stretch(factor, s), YaRN multiplies cos and sin by
// m(mscale) / m(mscale_all_dim), and the scores by m(mscale_all_dim)^2.
Status read_rope(const JsonAt& config, MtpConfig* c) {
  RopeScaling& rope = c->rope;
  double& scale = c->attention.scale;
  scale = 1 / std::sqrt(static_cast<double>(c->attention.nope + c->attention.rope));
  const bool joined = config.has("rope_parameters");
  const std::string key = joined ? "rope_parameters" : "rope_scaling";
  ConfigReader top{config};
  if (!joined) top.number("rope_theta", 1.0001, 1e12, 10000, &rope.theta);
  SLUICE_TRY(top.status);
  if (!config.has(key)) return {};
  const auto member = config.at(key);
  if (!member.ok()) return member.status();
  const JsonAt& scaling = member.value();
  SLUICE_TRY(scaling.need_object());
  for (const auto& [key, value] : scaling.value().items())
    if (value.is_structured())
      return unsupported(
          scaling.at(key).value().wrong("a number or a word: layers of DeepSeek V3 rotate alike").message);
  if (joined) {
    ConfigReader theta{scaling};
    theta.number("rope_theta", 1.0001, 1e12, 10000, &rope.theta);
    SLUICE_TRY(theta.status);
    const auto type = scaling.string("rope_type", "default");
    if (!type.ok()) return type.status();
    if (type.value() == "default") return {};
  }
  SLUICE_TRY(must_be(scaling, scaling.has("rope_type") ? "rope_type" : "type", "yarn", kModels));
  double mscale = 0, all_dim = 0;
  ConfigReader r{scaling};
  r.number("factor", 1, 1e6, 1, &rope.factor);
  r.number("original_max_position_embeddings", 1, 1e9, 4096, &rope.original_context);
  r.number("beta_fast", 1e-3, 1e6, 32, &rope.beta_fast);
  r.number("beta_slow", 1e-3, 1e6, 1, &rope.beta_slow);
  r.number("mscale", 0, 1e3, 0, &mscale);
  r.number("mscale_all_dim", 0, 1e3, 0, &all_dim);
  SLUICE_TRY(r.status);
  rope.truncate = RopeScaling::Truncate::kYes;
  rope.attention_factor = mscale > 0 && all_dim > 0
                              ? yarn_stretch(rope.factor, mscale) / yarn_stretch(rope.factor, all_dim)
                              : yarn_stretch(rope.factor, 1);
  if (all_dim > 0) scale *= yarn_stretch(rope.factor, all_dim) * yarn_stretch(rope.factor, all_dim);
  return {};
}

Status read_attention(const JsonAt& config, LatentAttentionConfig* a) {
  SLUICE_TRY(must_be(config, "attention_bias", false, kModels));
  SLUICE_TRY(must_be(config, "rope_interleave", true, kModels));
  ConfigReader r{config};
  r.integer("num_attention_heads", 1, 4096, &a->heads);
  r.integer("q_lora_rank", 1, 65536, &a->q_rank);
  r.integer("kv_lora_rank", 1, 1024, &a->rank);
  r.integer("qk_nope_head_dim", 1, 1024, &a->nope);
  r.integer("qk_rope_head_dim", 2, 1024, &a->rope);
  r.integer("v_head_dim", 1, 1024, &a->v_dim);
  SLUICE_TRY(r.status);
  if (a->rope % 2 == 0) return {};
  return config.at("qk_rope_head_dim").value().wrong("an even number (pairs turn together)");
}

Status read_moe(const JsonAt& config, MoeConfig* moe) {
  SLUICE_TRY(must_be(config, "hidden_act", "silu", kModels));
  SLUICE_TRY(must_be(config, "scoring_func", "sigmoid", kModels));
  SLUICE_TRY(must_be(config, "topk_method", "noaux_tc", kModels));
  SLUICE_TRY(must_be(config, "norm_topk_prob", true, kModels));
  SLUICE_TRY(must_be(config, "moe_layer_freq", 1, kModels));
  int64_t shared = 0;
  ConfigReader r{config};
  r.integer("moe_intermediate_size", 1, 65536, &moe->intermediate);
  r.integer("n_routed_experts", 1, 1024, &moe->experts);
  r.integer("num_experts_per_tok", 1, 1024, &moe->top_k);
  r.integer("n_group", 1, 1024, &moe->groups);
  r.integer("topk_group", 1, 1024, &moe->topk_groups);
  r.integer("n_shared_experts", 0, 64, &shared);
  r.number("routed_scaling_factor", 1e-6, 1e6, 1, &moe->scale);
  SLUICE_TRY(r.status);
  moe->shared_intermediate = shared * moe->intermediate;
  moe->shared_as_slots = shared_fits_slots(*moe);
  const auto refuse = [&](const std::string& key, const std::string& wanted) {
    return config.at(key).value().wrong(wanted);
  };
  if (moe->experts % moe->groups)
    return refuse("n_group", "a divisor of n_routed_experts = " + std::to_string(moe->experts));
  if (moe->topk_groups > moe->groups)
    return refuse("topk_group", "at most n_group = " + std::to_string(moe->groups));
  const int64_t open = moe->experts / moe->groups * moe->topk_groups;
  if (moe->top_k > open)
    return refuse("num_experts_per_tok",
                  "at most the " + std::to_string(open) + " experts of topk_group groups");
  return {};
}

Status need_architecture(const JsonAt& config) {
  const auto list = config.at("architectures");
  if (!list.ok()) return list.status();
  if (list.value().value() == Json::array({"DeepseekV3ForCausalLM"})) return {};
  Status status = list.value().wrong("[\"DeepseekV3ForCausalLM\"]");
  if (list.value().value().is_array() && list.value().value().size() == 1 &&
      list.value().value()[0].is_string())
    status.message = list.value().where() + ": wanted DeepseekV3ForCausalLM, found " +
                     list.value().value()[0].get<std::string>();
  status.code = Code::kUnsupported;
  return status;
}

}  // namespace

Result<MtpModelConfig> read_mtp_config(const JsonAt& config) {
  SLUICE_TRY(need_architecture(config));
  MtpModelConfig out;
  MtpConfig& c = out.mtp;
  c.moe = known_moe("deepseek-v3").value();  // provides the arithmetic; the checkpoint provides the shape
  c.moe.residual = true;
  int64_t dense = 0;
  ConfigReader r{config};
  r.integer("vocab_size", 1, 1 << 24, &c.vocab);
  r.integer("hidden_size", 1, 32768, &c.hidden);
  r.integer("num_hidden_layers", 1, 1000, &out.layers);
  r.integer("num_nextn_predict_layers", 1, 100, &out.drafts);
  r.integer("first_k_dense_replace", 0, 1000, &dense);
  r.integer("max_position_embeddings", 1, INT32_MAX, &out.context);
  r.number("rms_norm_eps", 1e-12, 1, 1e-6, &c.eps);
  SLUICE_TRY(r.status);
  if (dense > out.layers)
    return config.at("first_k_dense_replace")
        .value()
        .wrong("at most num_hidden_layers = " + std::to_string(out.layers) + ": a draft layer has experts");
  SLUICE_TRY(read_attention(config, &c.attention));
  SLUICE_TRY(read_moe(config, &c.moe));
  SLUICE_TRY(read_rope(config, &c));
  c.attention.hidden = c.moe.hidden = c.hidden;
  return out;
}

}  // namespace sluice
