// Reads config.json of EAGLE3 draft heads.
//
// Source  vLLM model_executor/models/llama_eagle3.py, transformers_utils/configs/speculators; SGLang
//         srt/models/{llama_eagle3,gpt_oss}.py; speculators models/eagle3/config.py; Model-Optimizer
//         export/plugins/hf_spec_configs.py; transformers models/llama.
#include <algorithm>

#include "models/draft.h"
#include "models/read_config.h"
#include "models/read_decoder.h"

namespace sluice {
namespace of_eagle3 {
namespace {

const std::string kModels = "EAGLE3 draft";
constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";
constexpr int64_t kLayerIdsMax = 64;

// kUnsupported for a key that no supported head has, or whose value does not match this model.
Status unfit(const JsonAt& config, const std::string& key, const std::string& wanted) {
  return unsupported(refused(config, key, wanted).message);
}

// The objects of a config.json that hold a head's keys. A nested object that does not exist is replaced by
// the top level.
struct Keys {
  JsonAt top, layer;            // layer: transformer_layer_config, written by speculators
  std::optional<JsonAt> eagle;  // eagle_config, written by ModelOpt
  bool nested = false;          // whether transformer_layer_config exists

  // The object that has a key: eagle_config if only it has the key, otherwise the top level.
  const JsonAt& holder(const std::string& key) const {
    return eagle && !top.has(key) && eagle->has(key) ? *eagle : top;
  }
  Result<bool> flag(const std::string& key, bool otherwise) const {
    return holder(key).boolean(key, otherwise);
  }
};

// Adds the defaults of transformers' LlamaConfig, because speculators writes only values that differ from
// them.
Json with_llama_defaults(const Json& layer) {
  Json out = {{"hidden_size", 4096},
              {"intermediate_size", 11008},
              {"num_attention_heads", 32},
              {"num_hidden_layers", 32},
              {"vocab_size", 32000}};
  out.update(layer);
  return out;
}

Status need_architecture(const JsonAt& config) {
  const auto list = config.at("architectures");
  if (!list.ok()) return list.status();
  const Json& found = list.value().value();
  const bool one = found.is_array() && found.size() == 1 && found[0].is_string();
  const std::string name = one ? found[0].get<std::string>() : "";
  for (const char* known :
       {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3DraftModel", "Eagle3Speculator"})
    if (name == known) return {};
  const bool drafts = config.has("draft_vocab_size") || config.has("truncated_vocab_size");
  if (name == "LlamaForCausalLM" && drafts) return {};
  const std::string wanted =
      "one of LlamaForCausalLMEagle3, Eagle3LlamaForCausalLM, Eagle3DraftModel, Eagle3Speculator, or "
      "LlamaForCausalLM with draft_vocab_size or truncated_vocab_size";
  if (!one) return unsupported(list.value().wrong(wanted).message);
  return unsupported(list.value().where() + ": wanted " + wanted + ", found " + name);
}

// Rejects variants that no single-layer head uses.
Status need_plain_layer(const Keys& k) {
  SLUICE_TRY(must_be(k.top, "speculators_model_type", "eagle3", kModels));
  if (k.nested) SLUICE_TRY(must_be(k.layer, "model_type", "llama", kModels));
  for (const JsonAt* config : {&k.top, &k.layer})
    for (const char* key : {"quantization_config", "compression_config"})
      if (config->has(key)) return unfit(*config, key, "no such key");
  SLUICE_TRY(must_be(k.top, "parallel_drafting", false, kModels));
  SLUICE_TRY(must_be(k.layer, "tie_word_embeddings", false, kModels));
  const auto layers = k.layer.integer("num_hidden_layers", 1, 1000);
  if (!layers.ok()) return layers.status();
  if (layers.value() != 1)
    return unfit(k.layer, "num_hidden_layers",
                 "1 (heads of several layers, as P-EAGLE's, are not supported)");
  SLUICE_TRY(must_be(k.layer, "hidden_act", "silu", kModels));
  SLUICE_TRY(must_be(k.layer, "mlp_bias", false, kModels));
  SLUICE_TRY(must_be(k.layer, "use_sliding_window", false, kModels));
  SLUICE_TRY(must_be(k.layer, "layer_types", Json::array({"full_attention"}), kModels));
  SLUICE_TRY(must_be(k.layer, "logit_scale", 1.0, kModels));
  if (!k.eagle) return {};
  SLUICE_TRY(must_be(*k.eagle, "use_input_layernorm_in_first_layer", true, kModels));
  SLUICE_TRY(must_be(*k.eagle, "use_last_layernorm", true, kModels));
  SLUICE_TRY(must_be(*k.eagle, "use_mtp_layernorm", false, kModels));
  return must_be(*k.eagle, "parallel_draft_step", 1, kModels);
}

Status read_sizes(const Keys& k, const ModelConfig& model, DraftLayerConfig* c) {
  ConfigReader layer{k.layer};
  layer.integer("hidden_size", 1, 65536, &c->hidden);
  layer.integer("vocab_size", 1, 1 << 24, &c->vocab);
  layer.number("rms_norm_eps", 1e-12, 1, 1e-6, &c->eps);
  SLUICE_TRY(layer.status);
  const int64_t vocab = model.decoder.vocab;
  c->model_hidden = model.decoder.hidden;
  const std::string of_model = "the model's " + std::to_string(c->model_hidden);
  int64_t of_target = c->model_hidden;
  ConfigReader top{k.top};
  if (k.top.has("target_hidden_size")) top.integer("target_hidden_size", 1, 65536, &of_target);
  SLUICE_TRY(top.status);
  if (of_target != c->model_hidden) return unfit(k.top, "target_hidden_size", of_model);
  if (c->hidden != c->model_hidden && !k.top.has("target_hidden_size"))
    return unfit(k.layer, "hidden_size", of_model + " without target_hidden_size");
  if (c->vocab != vocab) return unfit(k.layer, "vocab_size", "the model's " + std::to_string(vocab));
  c->draft_vocab = vocab;
  for (const char* key : {"truncated_vocab_size", "draft_vocab_size"})
    if (k.top.has(key)) top.integer(key, 1, vocab, &c->draft_vocab);
  return top.status;
}

// Reads the layer ids and converts them to the numbering of DraftLayerConfig::taps. vLLM and SpecForge use
// that numbering, in which id i is the input of layer i. ModelOpt, the only tool that writes the ids only
// into eagle_config, means the output of layer i, unless an id equals the number of layers.
Result<std::vector<int32_t>> read_layer_ids(const JsonAt& config, int64_t layers, bool may_be_outputs) {
  std::vector<int32_t> out;
  const auto list = config.at(kLayerIds);
  if (!list.ok()) return list.status();
  const auto items = list.value().items();
  if (!items.ok()) return items.status();
  for (const JsonAt& item : items.value()) {
    const auto id = item.integer(0, layers);
    if (!id.ok()) return id.status();
    out.push_back(static_cast<int32_t>(id.value()));
  }
  if (std::ssize(out) > kLayerIdsMax)
    return list.value().wrong("at most " + std::to_string(kLayerIdsMax) + " layers");
  const bool outputs = may_be_outputs && *std::max_element(out.begin(), out.end()) < layers;
  for (int32_t& id : out) id += outputs;
  return out;
}

Result<std::vector<int32_t>> read_taps(const Keys& k, int64_t layers) {
  const auto has_ids = [](const JsonAt& config) {
    return config.has(kLayerIds) && config.value()[kLayerIds] != Json::array();
  };
  const auto count_is = [&](const std::vector<int32_t>& taps) -> Status {
    constexpr const char* kCount = "num_aux_hidden_states";
    const JsonAt& config = k.holder(kCount);
    const auto count = config.integer(kCount, 1, kLayerIdsMax, std::ssize(taps));
    if (!count.ok() || count.value() == std::ssize(taps)) return count.status();
    return unfit(config, kCount, std::to_string(taps.size()) + ", the number of layer ids");
  };
  const bool of_eagle = k.eagle && has_ids(*k.eagle);
  std::vector<int32_t> taps;
  if (has_ids(k.top) || of_eagle) {
    auto read = read_layer_ids(has_ids(k.top) ? k.top : *k.eagle, layers, !has_ids(k.top));
    if (!read.ok()) return read.status();
    taps = std::move(read).value();
  } else if (layers < 3) {
    return unsupported(k.top.where() + ": " + kLayerIds +
                       ": wanted the ids, which have no default for a model of " + std::to_string(layers) +
                       " layers, found none");
  } else {
    const auto l = static_cast<int32_t>(layers);
    taps = {2, l / 2, l - 3};
  }
  SLUICE_TRY(count_is(taps));
  return taps;
}

// Reads how the model's hidden states are normed and projected before the layer.
Status read_features(const Keys& k, int64_t layers, DraftLayerConfig* c) {
  const auto fc = k.flag("use_aux_hidden_state", true);
  const auto all = k.flag("norm_before_fc", false);
  const std::string each_key = k.holder("use_aux_norm").has("use_aux_norm") ? "use_aux_norm" : "fc_norm";
  const auto each = k.flag(each_key, false);
  for (const auto* flag : {&fc, &all, &each})
    if (!flag->ok()) return flag->status();
  if (all.value() && each.value()) return unfit(k.holder(each_key), each_key, "false with norm_before_fc");
  c->fc = fc.value();
  if (!c->fc) {
    if (all.value())
      return unfit(k.holder("norm_before_fc"), "norm_before_fc", "false without use_aux_hidden_state");
    if (each.value()) return unfit(k.holder(each_key), each_key, "false without use_aux_hidden_state");
    if (c->hidden != c->model_hidden)
      return unfit(k.layer, "hidden_size",
                   "the model's " + std::to_string(c->model_hidden) + " without use_aux_hidden_state");
    c->taps = {static_cast<int32_t>(layers + 1)};
    return {};
  }
  if (all.value()) c->feature_norm = DraftLayerConfig::FeatureNorm::kAll;
  if (each.value()) c->feature_norm = DraftLayerConfig::FeatureNorm::kEach;
  auto taps = read_taps(k, layers);
  if (!taps.ok()) return taps.status();
  c->taps = std::move(taps).value();
  return {};
}

Status read_llama3(const JsonAt& layer, const JsonAt& scaling, RopeScaling* rope) {
  *rope = {.blend = RopeScaling::Blend::kRotations, .attention_factor = 1};
  ConfigReader top{layer}, r{scaling};
  top.number("rope_theta", 1.0001, 1e12, 10000, &rope->theta);
  r.number("rope_theta", 1.0001, 1e12, rope->theta, &rope->theta);
  r.number("factor", 1, 1e6, 8, &rope->factor);
  r.number("low_freq_factor", 1e-3, 1e6, 1, &rope->beta_slow);
  r.number("high_freq_factor", 1e-3, 1e6, 4, &rope->beta_fast);
  r.number("original_max_position_embeddings", 1, 1e9, 8192, &rope->original_context);
  SLUICE_TRY(top.status);
  SLUICE_TRY(r.status);
  if (rope->beta_fast > rope->beta_slow) return {};
  return unfit(scaling, "high_freq_factor", "a number above low_freq_factor");
}

// Reads the head's rotary embedding, which is independent of the model's.
Status read_rotary(const JsonAt& layer, RopeScaling* rope) {
  if (const char* const key = rope_key(layer)) {
    const JsonAt scaling = layer.at(key).value();
    SLUICE_TRY(scaling.need_object());
    const char* const type = scaling.has("rope_type") ? "rope_type" : "type";
    const auto found = scaling.string(type, "default");
    if (!found.ok()) return found.status();
    if (found.value() == "llama3") return read_llama3(layer, scaling, rope);
    if (found.value() != "default" && found.value() != "yarn")
      return unfit(scaling, type, "default, yarn or llama3");
  }
  return read_rope(layer, {.models = kModels, .unsaid = {.theta = 10000}, .context = 2048}, rope);
}

Status read_layer(const Keys& k, DraftLayerConfig* c) {
  c->attention = {.hidden = c->hidden, .input = 2 * c->hidden};
  const auto bias = k.layer.boolean("attention_bias", false);
  if (!bias.ok()) return bias.status();
  c->attention.qkv_bias = c->attention.o_bias = bias.value();
  SLUICE_TRY(read_heads(k.layer, HeadDim::kMayBeMissing, &c->attention));
  SLUICE_TRY(read_rotary(k.layer, &c->rope));
  c->mlp = {.hidden = c->hidden, .experts = 1, .top_k = 1, .dense = true, .expert_w = DType::kBF16};
  c->mlp.residual = true;
  ConfigReader r{k.layer};
  r.integer("intermediate_size", 1, 1 << 20, &c->mlp.intermediate);
  return r.status;
}

// If config.json has a nested object, `layer` receives it with its defaults and must outlive the result.
Result<Keys> keys_of(const JsonAt& config, Json* layer) {
  Keys out{.top = config, .layer = config, .eagle = {}};
  if (config.has("transformer_layer_config")) {
    const JsonAt nested = config.at("transformer_layer_config").value();
    SLUICE_TRY(nested.need_object());
    *layer = with_llama_defaults(nested.value());
    out.layer = JsonAt(*layer, nested.where());
    out.nested = true;
  }
  if (config.has("eagle_config")) {
    out.eagle = config.at("eagle_config").value();
    SLUICE_TRY(out.eagle->need_object());
  }
  return out;
}

Result<DraftLayerConfig> read(const JsonAt& config, const ModelConfig& model) {
  SLUICE_TRY(need_architecture(config));
  Json layer;
  const auto keys = keys_of(config, &layer);
  if (!keys.ok()) return keys.status();
  const Keys& k = keys.value();
  DraftLayerConfig out;
  SLUICE_TRY(need_plain_layer(k));
  SLUICE_TRY(read_sizes(k, model, &out));
  SLUICE_TRY(read_features(k, std::ssize(model.decoder.layers), &out));
  const auto residual = k.flag("norm_before_residual", k.nested), output = k.flag("norm_output", false);
  if (!residual.ok()) return residual.status();
  if (!output.ok()) return output.status();
  out.norm_before_residual = residual.value();
  out.norm_output = output.value();
  SLUICE_TRY(read_layer(k, &out));
  return out;
}

}  // namespace
}  // namespace of_eagle3

Result<DraftLayerConfig> read_eagle3_config(const JsonAt& config, const ModelConfig& model) {
  return of_eagle3::read(config, model);
}

Result<std::optional<int64_t>> read_speculative_tokens(const JsonAt& config) {
  const std::optional<int64_t> none;
  if (!config.has("speculators_config")) return none;
  const JsonAt speculators = config.at("speculators_config").value();
  SLUICE_TRY(speculators.need_object());
  if (!speculators.has("proposal_methods")) return none;
  const auto methods = speculators.at("proposal_methods").value().items();
  if (!methods.ok()) return methods.status();
  if (methods.value().empty() || !methods.value()[0].has("speculative_tokens")) return none;
  const auto count = methods.value()[0].integer("speculative_tokens", 1, 1024);
  if (!count.ok()) return count.status();
  return std::optional<int64_t>(count.value());
}

}  // namespace sluice
