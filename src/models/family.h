// Model families: each reads config.json into a decoder config and lists the tensors of its checkpoints. A
// family is one source file and one line in families.def.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nn/decoder.h"
#include "nn/moe/names.h"

namespace sluice {

// Upper bound of a request's temperature; above it, all tokens are practically equally likely.
constexpr double kTemperatureMax = 100;

// Limits of penalties and biases, as in OpenAI's API. That API has no repetition penalty; the range of ours keeps
// a logit from vanishing or dominating.
constexpr double kPenaltyMax = 2, kLogitBiasMax = 100, kRepetitionMin = 0.01, kRepetitionMax = 100;

// Default sampling parameters that the model's authors recommend, from generation_config.json. If the
// file lacks a value, transformers' default is used. The member initializers are values without effect on sampling.
struct GenerationDefaults {
  double temperature = 1;  // 0 (greedy) if do_sample is false
  double top_p = 1, min_p = 0;
  int64_t top_k = 0;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::optional<int64_t> max_new_tokens = {};  // upper bound of the answer's tokens
  std::optional<int64_t> max_length = {};      // upper bound of prompt and answer tokens together
};

struct ModelConfig {
  std::string architecture;  // from config.json: "GptOssForCausalLM"
  DecoderConfig decoder;
  int64_t context = 0;               // positions that the model supports
  std::vector<int32_t> stop_tokens;  // any of them ends an answer
  GenerationDefaults generation;
  int64_t mtp_layers = 0;  // multi-token prediction layers after the decoder's layers (models/draft.h)
  enum class Head : uint8_t { kOwn, kTied } head = Head::kOwn;  // kTied: lm_head is the embedding
};

// A checkpoint tensor, and the decoder weight that it becomes: the whole weight, or some of the weight's rows.
struct TensorSpec {
  std::string name;
  StoredType type = StoredType::kBF16;
  std::vector<int64_t> shape;
  std::string weight;     // name in decoder_weights(): "attention.qkv"
  int64_t layer = -1;     // -1: outside the layers
  int64_t first_row = 0;  // first row in that weight, if several tensors form it
  // Set if the tensor has the codes or scales of a quantized matrix: the matrix's format and number of columns.
  WeightFormat format = {};
  int64_t columns = 0;
  bool of_mlp = false;  // listed by moe_tensors() and read by load_moe()
  bool operator==(const TensorSpec&) const = default;
};
// Whether the tensor has a matrix's codes, not its scales.
inline bool is_codes(const TensorSpec& spec) { return !spec.weight.ends_with("_scale"); }
// Describes how a tensor is used: "layer 3 attention.qkv from row 512: packed as panels16".
std::string use_of(const TensorSpec& spec, WeightLayout layout);

// The tensors of one MoE layer or dense MLP under a naming of nn/moe/names.h, with the shapes that
// nn/moe/source.h checks.
std::vector<TensorSpec> moe_tensors(const MoeConfig& config, MoeNaming naming, int64_t layer);
// The naming of a layer's MLP in a checkpoint whose MoE layers follow `naming`.
inline MoeNaming naming_of(const MoeConfig& mlp, MoeNaming naming) {
  return mlp.dense ? MoeNaming::kDenseMlp : naming;
}

// A decoder's tensors under the names of Hugging Face models: model.embed_tokens,
// model.layers.L.self_attn.q_proj, ...
std::vector<TensorSpec> hugging_face_tensors(const ModelConfig& config, MoeNaming naming);
// The tensors of one layer: its norms, its attention and its MLP.
std::vector<TensorSpec> hugging_face_layer(const LayerConfig& layer, MoeNaming naming, int64_t number);
inline constexpr std::string_view kHuggingFaceHead = "lm_head.weight";

struct Family {
  std::string_view architecture, model_type;
  std::string_view other_type = {};  // model_type of other models with this architecture
  // Reads config.json. kUnsupported and kCorrupt name the key, what was wanted and what was found.
  Result<ModelConfig> (*read)(const JsonAt& config);
  std::vector<TensorSpec> (*tensors)(const ModelConfig& config, MoeNaming naming);
  // The namings that a checkpoint of the model may follow, the most common one first.
  std::vector<MoeNaming> (*namings)(const ModelConfig& config);
  // Implements fit_to_files().
  Status (*fit)(const Checkpoint& files, ModelConfig* config);
  bool formats =
      false;  // true: experts may have any format of models/quantization.h; false: `read` sets their format
};

std::span<const Family* const> families();
// The family of the model that config.json describes. kUnsupported lists the known families.
Result<const Family*> family_of(const JsonAt& config);

// Reads <directory>/config.json, and generation_config.json if it exists, whose stop tokens and defaults take
// precedence.
Result<ModelConfig> read_model_config(const std::string& directory);

// Corrects outdated entries of config.json that the files contradict: the files may have bf16 experts
// although quantization_config says MXFP4, or a separate lm_head although the embeddings are tied. kCorrupt:
// the files have quantized experts that the config does not mention.
Status fit_to_files(const Checkpoint& files, ModelConfig* config);

}  // namespace sluice
