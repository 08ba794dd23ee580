// --speculative-config: what vLLM's flag of that name says, as far as Sluice has it.
#pragma once
#include <string>

#include "engine/speculation.h"

namespace sluice::apps {

struct SpeculativeConfig {
  SpeculationOptions options;
  std::string
      model;  // of the draft head, in the form that model_directory() accepts; with eagle3. Empty: the shipped one
  bool count_from_head = false;  // the head may name another number of drafts
};

// A JSON object: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}. A key or a method that Sluice does not have is
// an error that names it; a key whose value is null counts as absent.
Result<SpeculativeConfig> read_speculative_config(const std::string& json);

}  // namespace sluice::apps
