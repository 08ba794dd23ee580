// Reads the keys of config.json that model families share.
//
// Source  Hugging Face transformers modeling_rope_utils.py, configuration_utils.py.
#include "models/read_decoder.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "models/read_config.h"

namespace sluice {
namespace {

constexpr double kThetaMin = 1.0001, kThetaMax = 1e12;

// Returns "yarn" or "default". kUnsupported names another type, or a member that neither type has.
Result<std::string> rope_type(const JsonAt& scaling, const std::string& models) {
  const auto type = scaling.string(scaling.has("rope_type") ? "rope_type" : "type", "default");
  if (!type.ok()) return type;
  if (type.value() != "default")
    SLUICE_TRY(must_be(scaling, scaling.has("rope_type") ? "rope_type" : "type", "yarn", models));
  for (const auto& [key, value] : scaling.value().items()) {
    const bool of_both =
        key == "rope_type" || key == "type" || key == "rope_theta" || key == "partial_rotary_factor";
    const bool of_yarn = key == "factor" || key == "original_max_position_embeddings" || key == "beta_fast" ||
                         key == "beta_slow" || key == "attention_factor" || key == "mscale" ||
                         key == "mscale_all_dim" || key == "truncate";
    if (value.is_null() || of_both || (of_yarn && type.value() == "yarn")) continue;
    return unsupported(scaling.at(key).value().wrong("no such key for rope_type " + type.value()).message);
  }
  SLUICE_TRY(must_be(scaling, "partial_rotary_factor", 1, models));
  return type;
}

Status read_yarn(const JsonAt& scaling, double context, RopeScaling* rope) {
  double mscale = 0, all_dim = 0;
  ConfigReader r{scaling};
  r.number("original_max_position_embeddings", 1, 1e9, context, &rope->original_context);
  SLUICE_TRY(r.status);
  if (!scaling.value().contains("factor")) return scaling.number("factor").status();
  r.number("factor", 1, 1e6, context / rope->original_context, &rope->factor);
  r.number("beta_fast", 1e-3, 1e6, 32, &rope->beta_fast);
  r.number("beta_slow", 1e-3, 1e6, 1, &rope->beta_slow);
  r.number("mscale", 0, 1e3, 0, &mscale);
  r.number("mscale_all_dim", 0, 1e3, 0, &all_dim);
  const double stretched = mscale > 0 && all_dim > 0
                               ? yarn_stretch(rope->factor, mscale) / yarn_stretch(rope->factor, all_dim)
                               : yarn_stretch(rope->factor, 1);
  r.number("attention_factor", 1e-3, 1e3, stretched, &rope->attention_factor);
  SLUICE_TRY(r.status);
  // A missing key means true, but null means false.
  const auto truncate = scaling.boolean("truncate", !scaling.value().contains("truncate"));
  if (!truncate.ok()) return truncate.status();
  rope->truncate = truncate.value() ? RopeScaling::Truncate::kYes : RopeScaling::Truncate::kNo;
  return {};
}

// Reads parameters that are given per kind of layer. They must be equal, because the decoder has one rotary
// table for all layers.
Result<JsonAt> rope_of_kinds(const JsonAt& parameters, const std::string& models) {
  std::vector<JsonAt> kinds;
  for (const auto& [key, value] : parameters.value().items()) {
    const JsonAt member = parameters.at(key).value();
    if (value.is_null()) continue;
    if (key != "full_attention" && key != "sliding_attention")
      return unsupported(member.wrong("only full_attention and sliding_attention").message);
    SLUICE_TRY(member.need_object());
    kinds.push_back(member);
  }
  for (const char* key : {"full_attention", "sliding_attention"})
    if (!parameters.has(key))
      return unsupported(parameters.where() + ": wanted full_attention and sliding_attention, found no " +
                         key);
  if (kinds[0].value() != kinds[1].value())
    return unsupported(
        kinds[1]
            .wrong("the value of full_attention, because " + models + " models rotate all layers alike")
            .message);
  return kinds[0];
}

bool is_null(const JsonAt& config, const std::string& key) {
  return config.value().contains(key) && config.value()[key].is_null();
}

}  // namespace

Status read_rope(const JsonAt& config, const RopeFamily& family, RopeScaling* rope) {
  double context = 0, theta = 0;
  ConfigReader top{config};
  top.number("rope_theta", kThetaMin, kThetaMax, family.unsaid.theta, &theta);
  top.number("max_position_embeddings", 1, 1e12, family.context, &context);
  SLUICE_TRY(top.status);
  SLUICE_TRY(must_be(config, "partial_rotary_factor", 1, family.models));
  *rope = family.unsaid;
  rope->theta = theta;
  const char* const key = rope_key(config);
  if (!key) return {};
  *rope = RopeScaling{.theta = theta};
  auto scaling = config.at(key);
  if (!scaling.ok()) return scaling.status();
  SLUICE_TRY(scaling.value().need_object());
  if (scaling.value().has("full_attention") || scaling.value().has("sliding_attention"))
    scaling = rope_of_kinds(scaling.value(), family.models);
  if (!scaling.ok()) return scaling.status();
  const auto type = rope_type(scaling.value(), family.models);
  if (!type.ok()) return type.status();
  ConfigReader r{scaling.value()};
  r.number("rope_theta", kThetaMin, kThetaMax, rope->theta, &rope->theta);
  SLUICE_TRY(r.status);
  if (type.value() == "default") return rope->factor = 1, Status{};
  SLUICE_TRY(read_yarn(scaling.value(), context, rope));
  if (!config.has("original_max_position_embeddings")) return {};
  top.number("original_max_position_embeddings", 1, 1e9, 0, &rope->original_context);
  return top.status;
}

Status read_tied(const JsonAt& config, ModelConfig* model) {
  const auto tied = config.boolean("tie_word_embeddings", false);
  if (!tied.ok()) return tied.status();
  if (tied.value()) model->head = ModelConfig::Head::kTied;
  return {};
}

Status fit_head_to_files(const Checkpoint& files, ModelConfig* config) {
  if (files.find_if_there(kHuggingFaceHead)) config->head = ModelConfig::Head::kOwn;
  return {};
}

Status read_dense_mlp(const JsonAt& config, int64_t hidden, MoeConfig* mlp) {
  *mlp = {.hidden = hidden, .experts = 1, .top_k = 1, .dense = true, .expert_w = DType::kBF16};
  mlp->residual = true;
  ConfigReader r{config};
  r.integer("intermediate_size", 1, 1 << 20, &mlp->intermediate);
  return r.status;
}

Status must_be_also(const JsonAt& config, const std::string& key, const std::string& first, int64_t value) {
  const auto same = config.integer(key, 1, 1024);
  if (!same.ok()) return same.status();
  if (same.value() == value) return {};
  return config.at(key).value().wrong(first + " = " + std::to_string(value));
}

Status refused(const JsonAt& config, const std::string& key, const std::string& wanted) {
  const auto member = config.at(key);
  return member.ok() ? member.value().wrong(wanted) : member.status();
}

Status read_heads(const JsonAt& config, HeadDim head_dim, AttentionConfig* a) {
  ConfigReader r{config};
  r.integer("num_attention_heads", 1, 1024, &a->heads);
  a->kv_heads = a->heads;
  if (!is_null(config, "num_key_value_heads")) r.integer("num_key_value_heads", 1, 1024, &a->kv_heads);
  SLUICE_TRY(r.status);
  a->head_dim = a->hidden / a->heads;
  const bool unsaid = head_dim == HeadDim::kMayBeMissing && !config.has("head_dim");
  if (!unsaid && !is_null(config, "head_dim")) r.integer("head_dim", 2, 512, &a->head_dim);
  SLUICE_TRY(r.status);
  if (a->heads % a->kv_heads)
    return refused(config, "num_attention_heads",
                   "a multiple of num_key_value_heads = " + std::to_string(a->kv_heads));
  if (a->head_dim < 2 || a->head_dim > 512)
    return refused(config, "head_dim", "a number, because hidden_size / num_attention_heads is not 2 to 512");
  if (a->head_dim % 2) return refused(config, "head_dim", "an even number (elements rotate in pairs)");
  a->rotary = a->head_dim;
  a->scale = 1 / std::sqrt(static_cast<double>(a->head_dim));
  return {};
}

}  // namespace sluice
