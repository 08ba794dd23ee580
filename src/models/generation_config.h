// What a checkpoint's files say about generating: tokens that end an answer, and sampling parameters.
#pragma once
#include "models/family.h"

namespace sluice {

// generation_config.json. kUnsupported names a key that asks for what Sluice does not compute, or that it does not know.
Status read_generation_config(const JsonAt& generation, ModelConfig* out);

// A config.json without a generation_config.json beside it, from which transformers then takes the same keys; all others are the model's.
Status read_generation_of_config(const JsonAt& config, ModelConfig* out);

// eos_token_id, a number or a list of numbers, replaces what is there; a missing key or null changes nothing.
Status read_stop_tokens(const JsonAt& config, ModelConfig* out);

}  // namespace sluice
