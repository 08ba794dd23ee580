// gpt-oss: attention with sinks, every second layer with a sliding window, YaRN, and MXFP4 experts in every layer.
//
// Source  openai/gpt-oss gpt_oss/torch/{model,weights}.py; Hugging Face transformers models/gpt_oss (configuration and names).
#include <cmath>

#include "models/family.h"

namespace sluice {
namespace {

constexpr int64_t kMxBlockBytes = kMxBlock / 2;

// What Sluice computes is fixed where the config could say something else; then it must say what is computed.
template <class T>
Status must_be(const JsonAt& config, const std::string& key, const T& wanted) {
  if (!config.has(key)) return {};
  const auto member = config.at(key);
  if (!member.ok()) return member.status();
  const Json want(wanted);
  if (member.value().value() == want) return {};
  Status status = member.value().wrong(want.dump() + ", which is all that gpt-oss models have");
  status.code = Code::kUnsupported;
  return status;
}

// Reads integers into fields; the first error stays.
struct Reader {
  const JsonAt& config;
  Status status = {};
  void integer(const std::string& key, int64_t least, int64_t most, int64_t* out) {
    if (!status.ok()) return;
    const auto value = config.integer(key, least, most);
    if (value.ok()) *out = value.value();
    status = value.status();
  }
  void number(const std::string& key, double least, double most, double otherwise, double* out) {
    if (!status.ok()) return;
    const auto value = config.number(key, otherwise);
    status = value.status();
    if (!value.ok()) return;
    *out = value.value();
    if (*out >= least && *out <= most) return;
    const auto member = config.at(key);
    const std::string wanted = "a number from " + std::to_string(least) + " to " + std::to_string(most);
    status = member.ok() ? member.value().wrong(wanted) : member.status();
  }
};

// Hugging Face writes rope_scaling and rope_theta; transformers 5 writes both into rope_parameters.
Status read_rope(const JsonAt& config, RopeScaling* rope) {
  const bool joined = config.has("rope_parameters");
  const std::string key = joined ? "rope_parameters" : "rope_scaling";
  Reader top{config};
  if (!joined) top.number("rope_theta", 1.0001, 1e12, 150000, &rope->theta);
  SLUICE_TRY(top.status);
  if (!config.has(key)) return {};
  const auto scaling = config.at(key);
  if (!scaling.ok()) return scaling.status();
  SLUICE_TRY(must_be(scaling.value(), "rope_type", "yarn"));
  Reader r{scaling.value()};
  if (joined) r.number("rope_theta", 1.0001, 1e12, 150000, &rope->theta);
  r.number("factor", 1, 1e6, 1, &rope->factor);
  r.number("original_max_position_embeddings", 1, 1e9, 4096, &rope->original_context);
  r.number("beta_fast", 1e-3, 1e6, 32, &rope->beta_fast);
  r.number("beta_slow", 1e-3, 1e6, 1, &rope->beta_slow);
  r.number("attention_factor", 0, 1e3, 0, &rope->attention_factor);
  SLUICE_TRY(r.status);
  const auto truncate = scaling.value().boolean("truncate", true);
  if (!truncate.ok()) return truncate.status();
  rope->truncate = truncate.value() ? RopeScaling::Truncate::kYes : RopeScaling::Truncate::kNo;
  return {};
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

MoeConfig moe_of(const DecoderConfig& c, int64_t intermediate, int64_t experts, int64_t top_k, double limit) {
  MoeConfig moe = known_moe("gpt-oss-20b").value();  // its arithmetic; the shape is the checkpoint's
  moe.hidden = c.hidden;
  moe.intermediate = intermediate;
  moe.experts = experts;
  moe.top_k = top_k;
  moe.limit = limit;
  moe.residual = true;
  return moe;
}

Result<ModelConfig> read(const JsonAt& config) {
  SLUICE_TRY(must_be(config, "attention_bias", true));
  SLUICE_TRY(must_be(config, "hidden_act", "silu"));
  SLUICE_TRY(must_be(config, "tie_word_embeddings", false));
  ModelConfig out;
  out.architecture = "GptOssForCausalLM";
  DecoderConfig& d = out.decoder;
  AttentionConfig attention{.qkv_bias = true, .o_bias = true, .sinks = true};
  int64_t layers = 0, intermediate = 0, experts = 0, top_k = 0, window = 0;
  double limit = 0;
  Reader r{config};
  r.integer("vocab_size", 1, 1 << 24, &d.vocab);
  r.integer("hidden_size", kMxBlock, 65536, &d.hidden);
  r.integer("intermediate_size", kMxBlock, 65536, &intermediate);
  r.integer("num_hidden_layers", 1, 1000, &layers);
  r.integer("num_attention_heads", 1, 1024, &attention.heads);
  r.integer("num_key_value_heads", 1, 1024, &attention.kv_heads);
  r.integer("head_dim", 2, 512, &attention.head_dim);
  r.integer("num_local_experts", 1, 1024, &experts);
  r.integer("num_experts_per_tok", 1, 1024, &top_k);
  r.integer("sliding_window", 1, INT32_MAX, &window);
  r.integer("max_position_embeddings", 1, INT32_MAX, &out.context);
  r.number("rms_norm_eps", 1e-12, 1, 1e-5, &d.eps);
  r.number("swiglu_limit", 0, 1e6, 7, &limit);
  SLUICE_TRY(r.status);
  const auto refuse = [&](const std::string& key, const std::string& wanted) -> Status {
    const auto member = config.at(key);
    return member.ok() ? member.value().wrong(wanted) : member.status();
  };
  if (d.hidden % kMxBlock) return refuse("hidden_size", "a multiple of 32 (MXFP4 blocks)");
  if (intermediate % kMxBlock) return refuse("intermediate_size", "a multiple of 32 (MXFP4 blocks)");
  if (attention.heads % attention.kv_heads)
    return refuse("num_attention_heads",
                  "a multiple of num_key_value_heads = " + std::to_string(attention.kv_heads));
  if (attention.head_dim % 2) return refuse("head_dim", "an even number (pairs turn together)");
  if (top_k > experts)
    return refuse("num_experts_per_tok", "at most num_local_experts = " + std::to_string(experts));
  SLUICE_TRY(read_rope(config, &d.rope));
  SLUICE_TRY(read_layers(config, layers, &d.kind));
  attention.hidden = d.hidden;
  attention.rotary = attention.head_dim;
  attention.scale = 1 / std::sqrt(static_cast<double>(attention.head_dim));
  AttentionConfig sliding = attention;
  sliding.window = window;
  d.attention = {sliding, attention};
  d.moe = moe_of(d, intermediate, experts, top_k, limit);
  return out;
}

// A tensor's name in both namings.
struct Names {
  const char *hugging_face, *original;
};

// Collects the tensors of one naming, layer by layer.
struct Lister {
  Naming naming;
  std::vector<TensorSpec> out = {};
  int64_t layer = -1;

  bool hugging_face() const { return naming == Naming::kHuggingFace; }
  void add(Names names, const char* dtype, std::vector<int64_t> shape, DecoderPart part, int64_t first_row = 0) {
    std::string prefix;
    if (layer >= 0) prefix = (hugging_face() ? "model.layers." : "block.") + std::to_string(layer) + ".";
    out.push_back({prefix + (hugging_face() ? names.hugging_face : names.original), dtype, std::move(shape),
                   part, layer, first_row});
  }
  void bf16(Names names, std::vector<int64_t> shape, DecoderPart part) {
    add(names, "BF16", std::move(shape), part);
  }
};

void list_attention(const AttentionConfig& a, Lister* l) {
  const int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  l->bf16({"input_layernorm.weight", "attn.norm.scale"}, {a.hidden}, DecoderPart::kAttentionNorm);
  if (l->hugging_face()) {
    const auto part = [&](const std::string& name, int64_t rows, int64_t first) {
      const std::string weight = "self_attn." + name + "_proj.weight",
                        bias = "self_attn." + name + "_proj.bias";
      l->add({weight.c_str(), ""}, "BF16", {rows, a.hidden}, DecoderPart::kQkv, first);
      l->add({bias.c_str(), ""}, "BF16", {rows}, DecoderPart::kQkvBias, first);
    };
    part("q", q, 0), part("k", kv, q), part("v", kv, q + kv);
  } else {
    l->bf16({"", "attn.qkv.weight"}, {q + 2 * kv, a.hidden}, DecoderPart::kQkv);
    l->bf16({"", "attn.qkv.bias"}, {q + 2 * kv}, DecoderPart::kQkvBias);
  }
  l->bf16({"self_attn.sinks", "attn.sinks"}, {a.heads}, DecoderPart::kSinks);
  l->bf16({"self_attn.o_proj.weight", "attn.out.weight"}, {a.hidden, q}, DecoderPart::kO);
  l->bf16({"self_attn.o_proj.bias", "attn.out.bias"}, {a.hidden}, DecoderPart::kOBias);
}

void list_moe(const MoeConfig& m, Lister* l) {
  l->bf16({"post_attention_layernorm.weight", "mlp.norm.scale"}, {m.hidden}, DecoderPart::kMoeNorm);
  l->bf16({"mlp.router.weight", "mlp.gate.weight"}, {m.experts, m.hidden}, DecoderPart::kRouter);
  l->bf16({"mlp.router.bias", "mlp.gate.bias"}, {m.experts}, DecoderPart::kRouterBias);
  const auto blocks = [&](Names names, int64_t rows, int64_t width, DecoderPart part) {
    l->add(names, "U8", {m.experts, rows, width / kMxBlock, kMxBlockBytes}, part);
  };
  const auto scales = [&](Names names, int64_t rows, int64_t width, DecoderPart part) {
    l->add(names, "U8", {m.experts, rows, width / kMxBlock}, part);
  };
  const int64_t up = 2 * m.intermediate;
  blocks({"mlp.experts.gate_up_proj_blocks", "mlp.mlp1_weight.blocks"}, up, m.hidden, DecoderPart::kExpertsUp);
  scales({"mlp.experts.gate_up_proj_scales", "mlp.mlp1_weight.scales"}, up, m.hidden, DecoderPart::kExpertsUpScale);
  l->bf16({"mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias"}, {m.experts, up}, DecoderPart::kExpertsUpBias);
  blocks({"mlp.experts.down_proj_blocks", "mlp.mlp2_weight.blocks"}, m.hidden, m.intermediate,
         DecoderPart::kExpertsDown);
  scales({"mlp.experts.down_proj_scales", "mlp.mlp2_weight.scales"}, m.hidden, m.intermediate,
         DecoderPart::kExpertsDownScale);
  l->bf16({"mlp.experts.down_proj_bias", "mlp.mlp2_bias"}, {m.experts, m.hidden}, DecoderPart::kExpertsDownBias);
}

std::vector<TensorSpec> tensors(const ModelConfig& config, Naming naming) {
  const DecoderConfig& d = config.decoder;
  Lister l{naming};
  l.bf16({"model.embed_tokens.weight", "embedding.weight"}, {d.vocab, d.hidden}, DecoderPart::kEmbedding);
  for (l.layer = 0; l.layer < d.layers(); ++l.layer) {
    list_attention(d.attention.front(), &l);
    list_moe(d.moe, &l);
  }
  l.layer = -1;
  l.bf16({"model.norm.weight", "norm.scale"}, {d.hidden}, DecoderPart::kFinalNorm);
  l.bf16({"lm_head.weight", "unembedding.weight"}, {d.vocab, d.hidden}, DecoderPart::kLmHead);
  return std::move(l.out);
}

}  // namespace

extern const Family gpt_oss = {.architecture = "GptOssForCausalLM", .read = read, .tensors = tensors};

}  // namespace sluice
