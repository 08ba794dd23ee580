// gpt-oss: attention with sinks, every second layer with a sliding window, YaRN, and experts in every layer, MXFP4 or bf16.
//
// Source  openai/gpt-oss gpt_oss/torch/{model,weights}.py; Hugging Face transformers models/gpt_oss (configuration and names).
#include <cmath>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"

namespace sluice {
namespace {

// Hugging Face writes rope_scaling and rope_theta; transformers 5 writes both into rope_parameters.
Status read_rope(const JsonAt& config, RopeScaling* rope) {
  const bool joined = config.has("rope_parameters");
  const std::string key = joined ? "rope_parameters" : "rope_scaling";
  ConfigReader top{config};
  if (!joined) top.number("rope_theta", 1.0001, 1e12, 150000, &rope->theta);
  SLUICE_TRY(top.status);
  if (!config.has(key)) return {};
  const auto scaling = config.at(key);
  if (!scaling.ok()) return scaling.status();
  SLUICE_TRY(must_be(scaling.value(), "rope_type", "yarn", "gpt-oss"));
  ConfigReader r{scaling.value()};
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

Status must_be_also(const JsonAt& config, const std::string& key, int64_t top_k) {
  const auto same = config.integer(key, 1, 1024);
  if (!same.ok()) return same.status();
  if (same.value() == top_k) return {};
  return config.at(key).value().wrong("num_experts_per_tok = " + std::to_string(top_k));
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
  // The reference rounds router logits to bf16. Exact logits cost nothing here and choose as the exact model would; rounded
  // logits tie, and then the lower expert wins.
  moe.logits = DType::kF32;
  return moe;
}

Result<ModelConfig> read(const JsonAt& config) {
  SLUICE_TRY(must_be(config, "attention_bias", true, "gpt-oss"));
  SLUICE_TRY(must_be(config, "hidden_act", "silu", "gpt-oss"));
  SLUICE_TRY(must_be(config, "tie_word_embeddings", false, "gpt-oss"));
  ModelConfig out;
  out.architecture = "GptOssForCausalLM";
  DecoderConfig& d = out.decoder;
  AttentionConfig attention{.qkv_bias = true, .o_bias = true, .sinks = true};
  int64_t layers = 0, intermediate = 0, experts = 0, top_k = 0, window = 0;
  double limit = 0;
  ConfigReader r{config};
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
  r.number("swiglu_limit", 1e-6, 1e6, 7, &limit);
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
  // The same count under OpenAI's own name, in the published configs beside the other.
  if (config.has("experts_per_token")) SLUICE_TRY(must_be_also(config, "experts_per_token", top_k));
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
  // Without quantisation the experts are bf16, as finetuned models often are.
  if (!config.has("quantization_config")) {
    d.moe.expert_w = DType::kBF16;
    return out;
  }
  const auto quantization = config.at("quantization_config");
  if (!quantization.ok()) return quantization.status();
  SLUICE_TRY(must_be(quantization.value(), "quant_method", "mxfp4", "gpt-oss"));
  return out;
}

// A tensor's name in both namings.
struct Names {
  std::string_view hugging_face, original;
};

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
  l.add({"model.embed_tokens.weight", "embedding.weight"}, {d.vocab, d.hidden}, DecoderPart::kEmbedding);
  for (l.layer = 0; l.layer < d.layers(); ++l.layer) {
    list_attention(d.attention.front(), &l);
    for (TensorSpec& spec : moe_tensors(d.moe, naming, l.layer)) l.out.push_back(std::move(spec));
  }
  l.layer = -1;
  l.add({"model.norm.weight", "norm.scale"}, {d.hidden}, DecoderPart::kFinalNorm);
  l.add({"lm_head.weight", "unembedding.weight"}, {d.vocab, d.hidden}, DecoderPart::kLmHead);
  return std::move(l.out);
}

std::vector<MoeNaming> namings(const ModelConfig& config) {
  if (config.decoder.moe.expert_w == DType::kBF16) return {MoeNaming::kGptOssBf16};
  return {MoeNaming::kGptOss, MoeNaming::kGptOssOriginal};
}

}  // namespace

extern const Family gpt_oss = {
    .architecture = "GptOssForCausalLM", .read = read, .tensors = tensors, .namings = namings};

}  // namespace sluice
