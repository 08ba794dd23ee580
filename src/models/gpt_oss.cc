// gpt-oss: attention with sinks, YaRN, and a sliding window in every second layer; MXFP4 or bf16 experts in
// every layer.
//
// Source  openai/gpt-oss gpt_oss/torch/{model,weights}.py; Hugging Face transformers models/gpt_oss
//         (configuration and names).
#include <cmath>
#include <string_view>

#include "models/family.h"
#include "models/read_config.h"
#include "models/read_decoder.h"

namespace sluice {
namespace of_gpt_oss {
namespace {

constexpr const char* kOriginalHead = "unembedding.weight";

// Which layers use a sliding window: those in layer_types, or by default every second layer from the first.
Result<std::vector<bool>> read_windowed(const JsonAt& config, int64_t layers) {
  std::vector<bool> out;
  if (!config.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) out.push_back(i % 2 == 0);
    return out;
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
    out.push_back(name.value() == "sliding_attention");
  }
  return out;
}

Status read_experts(const JsonAt& config, int64_t hidden, MoeConfig* moe) {
  *moe = known_moe("gpt-oss-20b").value();  // sets the arithmetic; the config sets the shape
  moe->hidden = hidden;
  moe->residual = true;
  // OpenAI's reference rounds router logits to bf16. Unrounded logits cost nothing here and choose the
  // experts that exact arithmetic would choose. Rounding to bf16 creates ties, which go to the lower expert.
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
  // OpenAI's name for the same number; published configs contain both names.
  if (config.has("experts_per_token"))
    SLUICE_TRY(must_be_also(config, "experts_per_token", "num_experts_per_tok", moe->top_k));
  // Another name that transformers uses for the same number.
  if (config.has("num_experts"))
    SLUICE_TRY(must_be_also(config, "num_experts", "num_local_experts", moe->experts));
  if (moe->top_k > moe->experts)
    return refused(config, "num_experts_per_tok",
                   "at most num_local_experts = " + std::to_string(moe->experts));
  // Without quantization_config the experts are bf16, as in many fine-tuned models. The files take precedence
  // (fit).
  if (!config.has("quantization_config")) return moe->expert_w = DType::kBF16, Status{};
  const auto quantization = config.at("quantization_config");
  if (!quantization.ok()) return quantization.status();
  const auto method = quantization.value().string("quant_method");
  if (!method.ok()) return method.status();
  return must_be(quantization.value(), "quant_method", "mxfp4", "gpt-oss");
}

// Defaults of missing keys: the published model's values, as in transformers.
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
  SLUICE_TRY(read_tied(config, &out));
  SLUICE_TRY(read_rope(config, rope_family(), &d.rope));
  LayerConfig layer;
  layer.attention = {.hidden = d.hidden, .qkv_bias = true, .o_bias = true, .sinks = true};
  SLUICE_TRY(read_heads(config, HeadDim::kSaid, &layer.attention));
  SLUICE_TRY(read_experts(config, d.hidden, &layer.mlp));
  const auto windowed = read_windowed(config, layers);
  if (!windowed.ok()) return windowed.status();
  for (const bool has_window : windowed.value()) {
    layer.attention.window = has_window ? window : 0;
    d.layers.push_back(layer);
  }
  return out;
}

// The names of OpenAI's original files, which have queries, keys and values in one tensor.
std::vector<TensorSpec> original_tensors(const ModelConfig& config) {
  const DecoderConfig& d = config.decoder;
  std::vector<TensorSpec> out;
  int64_t layer = -1;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, std::string_view weight) {
    const std::string place = layer < 0 ? "" : "block." + std::to_string(layer) + ".";
    out.push_back(
        {.name = place + name, .shape = std::move(shape), .weight = std::string(weight), .layer = layer});
  };
  add("embedding.weight", {d.vocab, d.hidden}, "embedding");
  for (const LayerConfig& l : d.layers) {
    ++layer;
    const AttentionConfig& a = l.attention;
    const int64_t q = a.heads * a.head_dim, qkv = q + 2 * a.kv_heads * a.head_dim;
    add("attn.norm.scale", {d.hidden}, "attention.norm");
    add("attn.qkv.weight", {qkv, d.hidden}, "attention.qkv");
    add("attn.qkv.bias", {qkv}, "attention.qkv_bias");
    add("attn.sinks", {a.heads}, "attention.sinks");
    add("attn.out.weight", {d.hidden, q}, "attention.o");
    add("attn.out.bias", {d.hidden}, "attention.o_bias");
    add("mlp.norm.scale", {d.hidden}, "mlp.norm");
    for (TensorSpec& spec : moe_tensors(l.mlp, MoeNaming::kGptOssOriginal, layer))
      out.push_back(std::move(spec));
  }
  layer = -1;
  add("norm.scale", {d.hidden}, "final_norm");
  add(config.head == ModelConfig::Head::kTied ? "embedding.weight" : kOriginalHead, {d.vocab, d.hidden},
      "lm_head");
  return out;
}

std::vector<TensorSpec> tensors(const ModelConfig& config, MoeNaming naming) {
  return naming == MoeNaming::kGptOssOriginal ? original_tensors(config)
                                              : hugging_face_tensors(config, naming);
}

std::vector<MoeNaming> namings(const ModelConfig& config) {
  if (config.decoder.moe().expert_w == DType::kBF16) return {MoeNaming::kGptOssBf16};
  return {MoeNaming::kGptOss, MoeNaming::kGptOssOriginal};
}

Status fit(const Checkpoint& files, ModelConfig* config) {
  for (const std::string_view name : {kHuggingFaceHead, std::string_view(kOriginalHead)})
    if (files.find_if_there(name)) config->head = ModelConfig::Head::kOwn;
  const auto naming = detect(files);
  if (!naming.ok()) return naming.status();
  if (naming.value() == MoeNaming::kGptOssBf16)
    for (LayerConfig& layer : config->decoder.layers) layer.mlp.expert_w = DType::kBF16;
  const bool mxfp4 = naming.value() == MoeNaming::kGptOss || naming.value() == MoeNaming::kGptOssOriginal;
  if (!mxfp4 || config->decoder.moe().expert_w == DType::kE2M1) return {};
  const int64_t layer = moe_layers(files, naming.value()).front();
  return {Code::kCorrupt, "config.json: quantization_config: wanted {\"quant_method\": \"mxfp4\"}, because " +
                              files.path() + " has " + tensor_name(moe_names(naming.value()).down, layer) +
                              ", found no such key"};
}

}  // namespace
}  // namespace of_gpt_oss

extern const Family gpt_oss = {.architecture = "GptOssForCausalLM",
                               .model_type = "gpt_oss",
                               .read = of_gpt_oss::read,
                               .tensors = of_gpt_oss::tensors,
                               .namings = of_gpt_oss::namings,
                               .fit = of_gpt_oss::fit};

}  // namespace sluice
