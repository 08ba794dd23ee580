// Reads stop tokens and default sampling parameters from a checkpoint's files.
#pragma once
#include "models/family.h"

namespace sluice {

// Reads generation_config.json. kUnsupported names a key that is unknown or that turns on an unsupported
// feature.
Status read_generation_config(const JsonAt& generation, ModelConfig* out);

// Reads the same keys from config.json if there is no generation_config.json, as transformers does. Ignores
// other keys, which describe the model.
Status read_generation_of_config(const JsonAt& config, ModelConfig* out);

// Replaces the stop tokens by eos_token_id, a number or a list of numbers; null or a missing key has no
// effect.
Status read_stop_tokens(const JsonAt& config, ModelConfig* out);

}  // namespace sluice
