// Acceptance of speculative decoding, from the counters of a server's /metrics.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

// A draft is a sequence of draft tokens that the model verified in one step.
struct DraftCounters {
  int64_t drafts = 0, draft_tokens = 0, accepted = 0;
  std::vector<int64_t> accepted_at = {};  // accepted tokens by their position in the draft

  double acceptance_rate() const;  // accepted tokens / draft tokens; 0 without draft tokens
  // mean number of tokens per step with a draft, including the model's own token
  double acceptance_length() const;
  // By position: accepted tokens / drafts.
  std::vector<double> acceptance_by_position() const;
};

// Reads vLLM's counters vllm:spec_decode_* from a page of /metrics, summed over labels such as the engine's number. Missing counters are
// 0.
DraftCounters draft_counters(std::string_view page);

// The counts between two pages; nullopt if no drafts were made between them, or if a counter decreased because the server was restarted.
std::optional<DraftCounters> drafts_between(const DraftCounters& before, const DraftCounters& after);

}  // namespace sluice
