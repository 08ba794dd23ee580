// The number of speculative drafts that saves the most time, by the cost models of the plans.
#pragma once
#include <string>
#include <vector>

#include "apps/common/speculative_config.h"
#include "apps/explain/explain_model.h"

namespace sluice::apps {

// The best number of drafts for `sequences` sequences that decode together.
struct DraftChoice {
  int64_t sequences = 0;
  // The probability that a draft is accepted if all drafts before it are accepted; equal for all drafts.
  double acceptance = 0;
  int64_t drafts = 0;   // number of drafts per sequence
  double tokens = 0;    // expected tokens per step, all sequences together
  double cost_us = 0;   // cost of the step and its drafts
  double plain_us = 0;  // cost of a step without drafts, including the draft layer, which runs in every step
  // Tokens per microsecond, divided by the tokens per microsecond of steps without drafts.
  double speedup() const { return tokens / cost_us * plain_us / static_cast<double>(sequences); }
};

struct DraftChoices {
  std::string model;
  DraftMethod method = DraftMethod::kNone;
  int64_t drafts_max = 0;            // num_speculative_tokens
  std::vector<DraftChoice> choices;  // ordered by sequences, then by acceptance
};

// The numbers of drafts that the engine would choose (worthwhile_count), with at most kVerifiedRows rows per step. Drafts of n-grams and suffixes
// cost nothing, except that on a GPU the host must wait for the previous tokens. Drafts of a draft layer cost the layer's passes. Uses
// `question.model`, which must be a directory, and the question's length, policy and cache type. Needs config.json of the model, with eagle3 also
// config.json of the draft head, but no weights. Errors name the flag or the file.
Result<DraftChoices> draft_choices(const ModelQuestion& question, const SpeculativeConfig& speculation,
                                   const DeviceInfo& device);

}  // namespace sluice::apps
