// gpt-oss: attention with sinks, every second layer with a sliding window, YaRN, and experts in every layer, MXFP4 or bf16.
//
// Source  openai/gpt-oss gpt_oss/torch/{model,weights}.py; Hugging Face transformers models/gpt_oss (configuration and names).
#include <cmath>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"
#include "models/read_decoder.h"

namespace sluice {
namespace {

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

// Where a config says nothing, transformers takes the published model's.
RopeFamily rope_family() {
  return {.models = "gpt-oss",
          .unsaid = {.theta = 150000, .factor = 32, .original_context = 4096},
          .context = 131072};
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
  SLUICE_TRY(read_heads(config, HeadDim::kSaid, &attention));
  SLUICE_TRY(read_rope(config, rope_family(), &d.rope));
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
