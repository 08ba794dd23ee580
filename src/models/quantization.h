// How a checkpoint says that its weights are quantized, and what its files have. Experts keep their format; other matrices become bf16
// (models/tensor_source.h).
#pragma once
#include <string>

#include "base/json.h"
#include "models/family.h"

namespace sluice {

// The format that quantization_config gives to experts; bf16 if config.json has none. Without one, hf_quant_config.json beside it
// counts. kUnsupported names the key of what Sluice does not compute. Lists of modules that are not quantized are not read: the files
// show them.
Result<WeightFormat> read_quantization(const JsonAt& config, const std::string& directory);

// Gives all experts this format, and shared experts too. kCorrupt names a key whose value the format does not allow.
Status set_format_of_experts(const JsonAt& config, WeightFormat format, ModelConfig* model);

// Corrects the format of one layer's experts by the files, which may keep a layer's experts or its shared expert in bf16. A shared
// expert in another format than the experts becomes bf16. kCorrupt: the experts have a format that the config does not mention.
Status fit_experts_to_files(const Checkpoint& files, MoeNaming naming, int64_t layer, MoeConfig* mlp);
// The same for every layer, and fit_head_to_files(): Family::fit where experts may have any format.
Status fit_formats_to_files(const Checkpoint& files, MoeNaming naming, ModelConfig* model);

}  // namespace sluice
