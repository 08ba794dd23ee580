// Model families: how a checkpoint's config.json becomes a decoder, and which tensors it has. One file a family, one line in
// families.def.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nn/decoder.h"
#include "nn/moe/names.h"

namespace sluice {

constexpr double kTemperatureMax =
    100;  // that anybody may ask for: beyond it all tokens are as likely as each other

// Penalties and biases as OpenAI's API bounds them; repetition penalties beyond these leave nothing of a logit, or nothing else.
constexpr double kPenaltyMax = 2, kLogitBiasMax = 100, kRepetitionMin = 0.01, kRepetitionMax = 100;

// What the model's authors recommend where nobody says otherwise: generation_config.json. ops/adjust_logits.h and ops/sample.h explain
// each.
struct GenerationDefaults {
  double temperature = 1;  // 0 where do_sample is false
  double top_p = 1, min_p = 0;
  int64_t top_k = 0;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int64_t max_new_tokens = 0, max_length = 0;  // of an answer, of it and its prompt; 0: none said
};

struct ModelConfig {
  std::string architecture;  // of config.json: "GptOssForCausalLM"
  DecoderConfig decoder;
  int64_t context = 0;               // positions that the model knows
  std::vector<int32_t> stop_tokens;  // each of them ends an answer
  GenerationDefaults generation;
  enum class Head : uint8_t { kOwn, kTied } head = Head::kOwn;  // kTied: the output layer is the embedding
};

// A tensor of a checkpoint, and the weight of the decoder that it is, or is rows of.
struct TensorSpec {
  std::string name;
  StoredType type = StoredType::kBF16;
  std::vector<int64_t> shape;
  std::string weight;     // as decoder_weights() names it: "attention.qkv"
  int64_t layer = -1;     // -1: of no layer
  int64_t first_row = 0;  // where its rows begin, of several that are one weight
  bool of_mlp = false;    // of moe_tensors(): load_moe() reads it
  bool operator==(const TensorSpec&) const = default;
};
// How it is used: "layer 3 attention.qkv from row 512: packed as panels16".
std::string use_of(const TensorSpec& spec, WeightLayout layout);

// The tensors of one MoE layer or dense MLP under any naming of nn/moe/names.h, with the shapes that nn/moe/source.h checks.
std::vector<TensorSpec> moe_tensors(const MoeConfig& config, MoeNaming naming, int64_t layer);
// The naming of a layer's MLP in a checkpoint whose experts follow `naming`.
inline MoeNaming naming_of(const MoeConfig& mlp, MoeNaming naming) {
  return mlp.dense ? MoeNaming::kDenseMlp : naming;
}

// The tensors of a decoder as Hugging Face's models name them: model.embed_tokens, model.layers.L.self_attn.q_proj, ...
std::vector<TensorSpec> hugging_face_tensors(const ModelConfig& config, MoeNaming naming);
inline constexpr std::string_view kHuggingFaceHead = "lm_head.weight";

struct Family {
  std::string_view architecture, model_type;
  // kUnsupported or kCorrupt names the key of config.json, what was wanted and what was found.
  Result<ModelConfig> (*read)(const JsonAt& config);
  std::vector<TensorSpec> (*tensors)(const ModelConfig& config, MoeNaming naming);
  // The namings that a checkpoint of `config` may follow, the most common first.
  std::vector<MoeNaming> (*namings)(const ModelConfig& config);
  // fit_to_files().
  Status (*fit)(const Checkpoint& files, ModelConfig* config);
};

std::span<const Family* const> families();
// The family that config.json names; kUnsupported lists the known ones.
Result<const Family*> family_of(const JsonAt& config);

// <directory>/config.json, and generation_config.json if there is one, whose tokens that end an answer and defaults then count.
Result<ModelConfig> read_model_config(const std::string& directory);

// What tools leave in a config.json and the files bear out otherwise: bf16 experts beside MXFP4's quantization_config, an output layer of
// its own where the config ties it to the embedding. kCorrupt: MXFP4 experts of which the config says nothing.
Status fit_to_files(const Checkpoint& files, ModelConfig* config);

}  // namespace sluice
