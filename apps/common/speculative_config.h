// --speculative-config: what vLLM's flag of that name says, as far as Sluice has it; and SGLang's flags for the same.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/speculation.h"

namespace sluice::apps {

struct SpeculativeConfig {
  SpeculationOptions options;
  std::string
      model;  // of the draft head, in the form that model_directory() accepts; with eagle3. Empty: the shipped one
  bool count_from_head = false;  // the head may name another number of drafts
  // With mtp: the device of the draft layer's experts, cpu or cuda, empty: where the model's are; and the type that router scores are
  // rounded to, float32 or bfloat16.
  std::string moe_backend, router_dtype = "float32";
};

// "none", or a JSON object: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}. A key or a method that Sluice does not have is
// an error that names it; a key whose value is null counts as absent.
Result<SpeculativeConfig> read_speculative_config(const std::string& json);

// SGLang's flags: --speculative-algorithm, --speculative-draft-model-path, --speculative-num-steps, --speculative-num-draft-tokens,
// --speculative-eagle-topk, --speculative-moe-runner-backend.
struct SglangSpeculation {
  std::string draft_model_path, moe_runner_backend;
  std::optional<std::string> algorithm;
  std::optional<int64_t> num_steps, num_draft_tokens, eagle_topk;
  bool any() const {
    return algorithm || !draft_model_path.empty() || !moe_runner_backend.empty() || num_steps ||
           num_draft_tokens || eagle_topk;
  }
};
// The value of --speculative-config that asks for the same. kInvalidArgument names the flag.
Result<std::string> speculative_config_of(const SglangSpeculation& flags);

}  // namespace sluice::apps
