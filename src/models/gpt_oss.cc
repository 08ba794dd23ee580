// gpt-oss: attention with sinks, every second layer with a sliding window, YaRN, and experts in every layer, MXFP4 or bf16.
//
// Source  openai/gpt-oss gpt_oss/torch/{model,weights}.py; Hugging Face transformers models/gpt_oss (configuration and names).
#include <cmath>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"

namespace sluice {
namespace {

constexpr double kThetaMin = 1.0001, kThetaMax = 1e12;

// "yarn" or "default"; kUnsupported names others, and members that neither has.
Result<std::string> rope_type(const JsonAt& scaling) {
  const auto type = scaling.string(scaling.has("rope_type") ? "rope_type" : "type", "default");
  if (!type.ok()) return type;
  if (type.value() != "default")
    SLUICE_TRY(must_be(scaling, scaling.has("rope_type") ? "rope_type" : "type", "yarn", "gpt-oss"));
  for (const auto& [key, value] : scaling.value().items()) {
    const bool of_both =
        key == "rope_type" || key == "type" || key == "rope_theta" || key == "partial_rotary_factor";
    const bool of_yarn = key == "factor" || key == "original_max_position_embeddings" || key == "beta_fast" ||
                         key == "beta_slow" || key == "attention_factor" || key == "mscale" ||
                         key == "mscale_all_dim" || key == "truncate";
    if (value.is_null() || of_both || (of_yarn && type.value() == "yarn")) continue;
    return unsupported(scaling.at(key).value().wrong("no such key for rope_type " + type.value()).message);
  }
  SLUICE_TRY(must_be(scaling, "partial_rotary_factor", 1, "gpt-oss"));
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
  // null says no here, a missing key yes.
  const auto truncate = scaling.boolean("truncate", !scaling.value().contains("truncate"));
  if (!truncate.ok()) return truncate.status();
  rope->truncate = truncate.value() ? RopeScaling::Truncate::kYes : RopeScaling::Truncate::kNo;
  return {};
}

// Parameters of each kind of layer: the decoder rotates all alike.
Result<JsonAt> rope_of_kinds(const JsonAt& parameters) {
  std::vector<JsonAt> kinds;
  for (const auto& [key, value] : parameters.value().items()) {
    const JsonAt member = parameters.at(key).value();
    if (value.is_null()) continue;
    if (key != "full_attention" && key != "sliding_attention")
      return unsupported(member.wrong("full_attention and sliding_attention alone").message);
    SLUICE_TRY(member.need_object());
    kinds.push_back(member);
  }
  for (const char* key : {"full_attention", "sliding_attention"})
    if (!parameters.has(key))
      return unsupported(parameters.where() + ": wanted full_attention and sliding_attention, found no " +
                         key);
  if (kinds[0].value() != kinds[1].value())
    return unsupported(
        kinds[1].wrong("what full_attention has: layers of gpt-oss models rotate alike").message);
  return kinds[0];
}

// Hugging Face writes rope_scaling and rope_theta; transformers 5 writes both into rope_parameters, which other tools nest by kind of
// layer. With neither, transformers takes the published model's. A rope_scaling stands over rope_parameters, and what is inside over what
// is beside.
Status read_rope(const JsonAt& config, RopeScaling* rope) {
  double context = 0;
  ConfigReader top{config};
  top.number("rope_theta", kThetaMin, kThetaMax, 150000, &rope->theta);
  top.number("max_position_embeddings", 1, 1e12, 131072, &context);
  SLUICE_TRY(top.status);
  SLUICE_TRY(must_be(config, "partial_rotary_factor", 1, "gpt-oss"));
  const bool scaled = config.has("rope_scaling");
  if (!scaled && !config.has("rope_parameters")) {
    rope->factor = 32, rope->original_context = 4096, rope->truncate = RopeScaling::Truncate::kNo;
    return {};
  }
  auto scaling = config.at(scaled ? "rope_scaling" : "rope_parameters");
  if (!scaling.ok()) return scaling.status();
  SLUICE_TRY(scaling.value().need_object());
  if (scaling.value().has("full_attention") || scaling.value().has("sliding_attention"))
    scaling = rope_of_kinds(scaling.value());
  if (!scaling.ok()) return scaling.status();
  const auto type = rope_type(scaling.value());
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

// A second name of a number.
Status must_be_also(const JsonAt& config, const std::string& key, const std::string& first, int64_t value) {
  const auto same = config.integer(key, 1, 1024);
  if (!same.ok()) return same.status();
  if (same.value() == value) return {};
  return config.at(key).value().wrong(first + " = " + std::to_string(value));
}

// layer_types, or where it is missing every second layer with a window, the first one included.
Status read_layers(const JsonAt& config, int64_t layers, std::vector<int32_t>* kind) {
  kind->clear();
  if (!config.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) kind->push_back(static_cast<int32_t>(i % 2));
    return {};
  }
  const auto types = config.at("layer_types");
  if (!types.ok()) return types.status();
  const auto items = types.value().items();
  if (!items.ok()) return items.status();
  if (static_cast<int64_t>(items.value().size()) != layers)
    return types.value().wrong("an array of num_hidden_layers = " + std::to_string(layers));
  for (const JsonAt& item : items.value()) {
    const auto name = item.string();
    if (!name.ok()) return name.status();
    if (name.value() != "sliding_attention" && name.value() != "full_attention")
      return item.wrong("sliding_attention or full_attention");
    kind->push_back(name.value() == "sliding_attention" ? 0 : 1);
  }
  return {};
}

bool is_null(const JsonAt& config, const std::string& key) {
  return config.value().contains(key) && config.value()[key].is_null();
}

Status refused(const JsonAt& config, const std::string& key, const std::string& wanted) {
  const auto member = config.at(key);
  return member.ok() ? member.value().wrong(wanted) : member.status();
}

// Heads of every kind of layer. null means what it means to transformers; a missing key would mean the published model's number.
Status read_heads(const JsonAt& config, AttentionConfig* a) {
  ConfigReader r{config};
  r.integer("num_attention_heads", 1, 1024, &a->heads);
  a->kv_heads = a->heads;
  if (!is_null(config, "num_key_value_heads")) r.integer("num_key_value_heads", 1, 1024, &a->kv_heads);
  SLUICE_TRY(r.status);
  a->head_dim = a->hidden / a->heads;
  if (!is_null(config, "head_dim")) r.integer("head_dim", 2, 512, &a->head_dim);
  SLUICE_TRY(r.status);
  if (a->heads % a->kv_heads)
    return refused(config, "num_attention_heads",
                   "a multiple of num_key_value_heads = " + std::to_string(a->kv_heads));
  if (a->head_dim < 2 || a->head_dim > 512)
    return refused(config, "head_dim", "a number, as hidden_size / num_attention_heads is not 2 to 512");
  if (a->head_dim % 2) return refused(config, "head_dim", "an even number (pairs turn together)");
  a->rotary = a->head_dim;
  a->scale = 1 / std::sqrt(static_cast<double>(a->head_dim));
  return {};
}

Status read_experts(const JsonAt& config, MoeConfig* moe) {
  const int64_t hidden = moe->hidden;
  *moe = known_moe("gpt-oss-20b").value();  // its arithmetic; the shape is the checkpoint's
  moe->hidden = hidden;
  moe->residual = true;
  // The reference rounds router logits to bf16. Exact logits cost nothing here and choose as the exact model would; rounded
  // logits tie, and then the lower expert wins.
  moe->logits = DType::kF32;
  ConfigReader r{config};
  r.integer("intermediate_size", kMxBlock, 65536, &moe->intermediate);
  const std::string experts = config.has("num_local_experts") ? "num_local_experts" : "num_experts";
  r.integer(config.has(experts) ? experts : "num_local_experts", 1, 1024, &moe->experts);
  r.integer("num_experts_per_tok", 1, 1024, &moe->top_k);
  r.number("swiglu_limit", 1e-6, 1e6, 7, &moe->limit);
  r.number("swiglu_alpha", 1e-6, 1e6, 1.702, &moe->alpha);
  SLUICE_TRY(r.status);
  if (moe->intermediate % kMxBlock)
    return refused(config, "intermediate_size", "a multiple of 32 (MXFP4 blocks)");
  // The same count under OpenAI's own name, in the published configs beside the other.
  if (config.has("experts_per_token"))
    SLUICE_TRY(must_be_also(config, "experts_per_token", "num_experts_per_tok", moe->top_k));
  // And transformers' other name of the experts' number.
  if (config.has("num_experts"))
    SLUICE_TRY(must_be_also(config, "num_experts", "num_local_experts", moe->experts));
  if (moe->top_k > moe->experts)
    return refused(config, "num_experts_per_tok",
                   "at most num_local_experts = " + std::to_string(moe->experts));
  // Without quantisation the experts are bf16, as finetuned models often are; what the files have counts more (fit).
  if (!config.has("quantization_config")) return moe->expert_w = DType::kBF16, Status{};
  const auto quantization = config.at("quantization_config");
  if (!quantization.ok()) return quantization.status();
  const auto method = quantization.value().string("quant_method");
  if (!method.ok()) return method.status();
  return must_be(quantization.value(), "quant_method", "mxfp4", "gpt-oss");
}

Result<ModelConfig> read(const JsonAt& config) {
  SLUICE_TRY(must_be(config, "attention_bias", true, "gpt-oss"));
  SLUICE_TRY(must_be(config, "hidden_act", "silu", "gpt-oss"));
  ModelConfig out;
  out.architecture = "GptOssForCausalLM";
  DecoderConfig& d = out.decoder;
  int64_t layers = 0, window = 0;
  ConfigReader r{config};
  r.integer("vocab_size", 1, 1 << 24, &d.vocab);
  r.integer("hidden_size", kMxBlock, 65536, &d.hidden);
  r.integer("num_hidden_layers", 1, 1000, &layers);
  r.integer("sliding_window", 1, INT32_MAX, &window);
  r.integer("max_position_embeddings", 1, INT32_MAX, &out.context);
  r.number("rms_norm_eps", 1e-12, 1, 1e-5, &d.eps);
  SLUICE_TRY(r.status);
  if (d.hidden % kMxBlock) return refused(config, "hidden_size", "a multiple of 32 (MXFP4 blocks)");
  AttentionConfig attention{.hidden = d.hidden, .qkv_bias = true, .o_bias = true, .sinks = true};
  SLUICE_TRY(read_heads(config, &attention));
  SLUICE_TRY(read_rope(config, &d.rope));
  SLUICE_TRY(read_layers(config, layers, &d.kind));
  AttentionConfig sliding = attention;
  sliding.window = window;
  d.attention = {sliding, attention};
  d.moe.hidden = d.hidden;
  SLUICE_TRY(read_experts(config, &d.moe));
  const auto tied = config.boolean("tie_word_embeddings", false);
  if (!tied.ok()) return tied.status();
  if (tied.value()) out.head = ModelConfig::Head::kTied;
  return out;
}

// A tensor's name in both namings.
struct Names {
  std::string_view hugging_face, original;
};

constexpr Names kEmbedding{"model.embed_tokens.weight", "embedding.weight"};
constexpr Names kHead{"lm_head.weight", "unembedding.weight"};

// Collects the bf16 tensors of one naming, layer by layer.
struct DenseLister {
  MoeNaming naming;
  std::vector<TensorSpec> out = {};
  int64_t layer = -1;

  bool original() const { return naming == MoeNaming::kGptOssOriginal; }
  void add(Names names, std::vector<int64_t> shape, DecoderPart part, int64_t first_row = 0) {
    std::string name;
    if (layer >= 0) name = (original() ? "block." : "model.layers.") + std::to_string(layer) + ".";
    name += original() ? names.original : names.hugging_face;
    out.push_back({name, StoredType::kBF16, std::move(shape), part, layer, first_row});
  }
};

void list_attention(const AttentionConfig& a, DenseLister* l) {
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  l->add({"input_layernorm.weight", "attn.norm.scale"}, {a.hidden}, DecoderPart::kAttentionNorm);
  if (l->original()) {
    l->add({"", "attn.qkv.weight"}, {q + 2 * kv, a.hidden}, DecoderPart::kQkv);
    l->add({"", "attn.qkv.bias"}, {q + 2 * kv}, DecoderPart::kQkvBias);
  } else {
    const auto part = [&](const std::string& name, int64_t rows, int64_t first) {
      l->add({"self_attn." + name + "_proj.weight", ""}, {rows, a.hidden}, DecoderPart::kQkv, first);
      l->add({"self_attn." + name + "_proj.bias", ""}, {rows}, DecoderPart::kQkvBias, first);
    };
    part("q", q, 0), part("k", kv, q), part("v", kv, q + kv);
  }
  l->add({"self_attn.sinks", "attn.sinks"}, {a.heads}, DecoderPart::kSinks);
  l->add({"self_attn.o_proj.weight", "attn.out.weight"}, {a.hidden, q}, DecoderPart::kO);
  l->add({"self_attn.o_proj.bias", "attn.out.bias"}, {a.hidden}, DecoderPart::kOBias);
  l->add({"post_attention_layernorm.weight", "mlp.norm.scale"}, {a.hidden}, DecoderPart::kMoeNorm);
}

std::vector<TensorSpec> tensors(const ModelConfig& config, MoeNaming naming) {
  const DecoderConfig& d = config.decoder;
  DenseLister l{naming};
  l.add(kEmbedding, {d.vocab, d.hidden}, DecoderPart::kEmbedding);
  for (l.layer = 0; l.layer < d.layers(); ++l.layer) {
    list_attention(d.attention.front(), &l);
    for (TensorSpec& spec : moe_tensors(d.moe, naming, l.layer)) l.out.push_back(std::move(spec));
  }
  l.layer = -1;
  l.add({"model.norm.weight", "norm.scale"}, {d.hidden}, DecoderPart::kFinalNorm);
  const Names& head = config.head == ModelConfig::Head::kTied ? kEmbedding : kHead;
  l.add(head, {d.vocab, d.hidden}, DecoderPart::kLmHead);
  return std::move(l.out);
}

std::vector<MoeNaming> namings(const ModelConfig& config) {
  if (config.decoder.moe.expert_w == DType::kBF16) return {MoeNaming::kGptOssBf16};
  return {MoeNaming::kGptOss, MoeNaming::kGptOssOriginal};
}

Status fit(const Checkpoint& files, ModelConfig* config) {
  for (const std::string_view name : {kHead.hugging_face, kHead.original})
    if (files.find_if_there(name)) config->head = ModelConfig::Head::kOwn;
  const auto naming = detect(files);
  if (!naming.ok()) return naming.status();
  DType& stored = config->decoder.moe.expert_w;
  if (naming.value() == MoeNaming::kGptOssBf16) stored = DType::kBF16;
  const bool mxfp4 = naming.value() == MoeNaming::kGptOss || naming.value() == MoeNaming::kGptOssOriginal;
  if (!mxfp4 || stored == DType::kE2M1) return {};
  const int64_t layer = moe_layers(files, naming.value()).front();
  return {Code::kCorrupt, "config.json: quantization_config: wanted {\"quant_method\": \"mxfp4\"}, as " +
                              files.path() + " has " + tensor_name(moe_names(naming.value()).down, layer) +
                              ", found no such key"};
}

}  // namespace

extern const Family gpt_oss = {.architecture = "GptOssForCausalLM",
                               .model_type = "gpt_oss",
                               .read = read,
                               .tensors = tensors,
                               .namings = namings,
                               .fit = fit};

}  // namespace sluice
