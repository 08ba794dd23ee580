// Parses --speculative-config (the part of vLLM's flag that Sluice supports) and SGLang's equivalent flags.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "engine/speculation.h"

namespace sluice::apps {

struct SpeculativeConfig {
  SpeculationOptions options;
  // eagle3 only: the draft head, in a form that model_directory() accepts; empty: the shipped head.
  std::string model;
  // no number of drafts was given, so the number in the draft head's config is used
  bool count_from_head = false;
  // mtp only. moe_backend: the device of the draft layer's experts (cpu or cuda); empty: the device of the model's experts. router_dtype: the
  // type to which router scores are rounded (float32 or bfloat16).
  std::string moe_backend, router_dtype = "float32";
};

// `json` is "none", or an object such as {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}. A key with the value null
// counts as absent. Errors name the unsupported key or method.
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
// Converts SGLang's flags to the equivalent value of --speculative-config. The message of kInvalidArgument names the flag.
Result<std::string> speculative_config_of(const SglangSpeculation& flags);

}  // namespace sluice::apps
