// Reads generation settings from a checkpoint's files: stop tokens and sampling parameters.
#pragma once
#include "models/family.h"

namespace sluice {

// Reads generation_config.json. kUnsupported names a key that is unknown or requests something Sluice does not compute.
Status read_generation_config(const JsonAt& generation, ModelConfig* out);

// Reads the same keys from a config.json without a generation_config.json beside it, as transformers does;
// other keys describe the model.
Status read_generation_of_config(const JsonAt& config, ModelConfig* out);

// eos_token_id, a number or a list of numbers, replaces the current stop tokens; null or a missing key changes nothing.
Status read_stop_tokens(const JsonAt& config, ModelConfig* out);

}  // namespace sluice
