// Reads which quantization a checkpoint's config declares, and corrects it where the files differ. Experts
// keep their format; other quantized matrices are converted to bf16 (models/tensor_source.h).
#pragma once
#include <string>

#include "base/json.h"
#include "models/family.h"

namespace sluice {

// kUnsupported: quantization_config has transforms. They rotate weights and need rotations of activations, which
// Sluice does not compute.
Status check_transforms(const JsonAt& config);

// The format that config.json's quantization_config gives to experts, or, if it has none,
// hf_quant_config.json in `directory`; bf16 if neither exists. kUnsupported names the key that declares an
// unsupported quantization. Ignores lists of modules that are not quantized, because the files show them.
Result<WeightFormat> read_quantization(const JsonAt& config, const std::string& directory);

// Sets the format of all experts, including shared experts. kCorrupt names a key whose value the format does
// not allow.
Status set_format_of_experts(const JsonAt& config, WeightFormat format, ModelConfig* model);

// Corrects the format of one layer's experts where the files differ: they may have a layer's experts or its
// shared expert in bf16. A shared expert whose format differs from the experts' is converted to bf16.
// kCorrupt: the experts have a quantized format that the config does not declare.
Status fit_experts_to_files(const Checkpoint& files, MoeNaming naming, int64_t layer, MoeConfig* mlp);
// Implements Family::fit for families with Family::formats: calls fit_experts_to_files() for every MoE layer,
// and fit_head_to_files().
Status fit_formats_to_files(const Checkpoint& files, MoeNaming naming, ModelConfig* model);

}  // namespace sluice
