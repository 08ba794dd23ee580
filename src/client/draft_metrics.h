// Acceptance of speculative decoding, from the counters of a server's /metrics.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

// A draft is a run of draft tokens that one step of a sequence verified.
struct DraftCounters {
  int64_t drafts = 0, draft_tokens = 0, accepted = 0;
  std::vector<int64_t> accepted_at = {};  // accepted tokens by their position in the draft

  double acceptance_rate() const;    // accepted tokens / draft tokens; 0 without draft tokens
  double acceptance_length() const;  // mean tokens of a step with drafts, including the model's own token
  // Accepted tokens at each position / drafts.
  std::vector<double> acceptance_by_position() const;
};

// Reads vLLM's counters vllm:spec_decode_*, summed over their labels, for example over several engines. A counter that is missing on
// the page is 0.
DraftCounters draft_counters(std::string_view page);

// The counts between two pages. None if no drafts were made, or if a counter decreased because the server was restarted.
std::optional<DraftCounters> drafts_between(const DraftCounters& before, const DraftCounters& after);

}  // namespace sluice
