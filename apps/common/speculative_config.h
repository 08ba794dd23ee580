// --speculative-config: what vLLM's flag of that name says, as far as Sluice has it.
#pragma once
#include <string>

#include "engine/speculation.h"

namespace sluice::apps {

// A JSON object: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}. A key or a method that Sluice does not have is
// an error that names it; a key whose value is null counts as absent.
Result<SpeculationOptions> read_speculative_config(const std::string& json);

}  // namespace sluice::apps
