// Model families: how a checkpoint's config.json becomes a decoder, and which tensors it has. One file a family, one line in
// families.def.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "nn/decoder.h"

namespace sluice {

struct ModelConfig {
  std::string architecture;  // of config.json: "GptOssForCausalLM"
  DecoderConfig decoder;
  int64_t context = 0;               // positions that the model knows
  std::vector<int32_t> stop_tokens;  // each of them ends an answer
};

// Checkpoints of one family may name the same tensors differently.
enum class Naming : uint8_t {
  kHuggingFace,
  kOriginal,  // as the model's authors published it, where that differs
};

// One tensor of a checkpoint, and what becomes of it.
struct TensorSpec {
  std::string name;
  std::string dtype;  // as safetensors spells it: "BF16", "U8"
  std::vector<int64_t> shape;
  std::string use;  // "layer 3 attention.qkv: rows 0 to 511 of 768, packed as panels16"
};

struct Family {
  std::string_view architecture;
  // kUnsupported or kCorrupt names the key of config.json, what was wanted and what was found.
  Result<ModelConfig> (*read)(const JsonAt& config);
  std::vector<TensorSpec> (*tensors)(const ModelConfig& config, Naming naming);
};

std::span<const Family* const> families();
// The family that config.json names; kUnsupported lists the known ones.
Result<const Family*> family_of(const JsonAt& config);

// <directory>/config.json, and what generation_config.json adds to the tokens that end an answer.
Result<ModelConfig> read_model_config(const std::string& directory);

}  // namespace sluice
