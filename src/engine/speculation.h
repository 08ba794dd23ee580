// Speculative decoding: chooses the draft tokens that the next step verifies for each sequence. Host data
// only.
//
// A sampled token depends only on the sequence's seed, the token's position and the tokens before it. A step
// that verifies k drafts samples k + 1 tokens: one after the last known token, and one after each draft. A
// sample is accepted if every draft before it equals the sample at the same position. So answers do not
// depend on drafts.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/ngram_index.h"

namespace sluice {

struct Sequence;
class DraftSource;

enum class DraftMethod : uint8_t {
  kNone,
  kNgram,   // prompt lookup: drafts are the tokens after an earlier occurrence of the last tokens
  kSuffix,  // as kNgram, with at most drafts_per_match drafts per matching token
  kEagle3,  // an EAGLE3 head computes the drafts (nn/draft_layer.h)
  kMtp,     // the model's multi-token prediction layer computes the drafts
};
constexpr std::string_view text(DraftMethod method) {
  constexpr std::string_view kWords[] = {"none", "ngram", "suffix", "eagle3", "mtp"};
  return kWords[static_cast<size_t>(method)];
}

// Whether a draft layer computes the drafts.
constexpr bool has_draft_layer(DraftMethod method) {
  return method == DraftMethod::kEagle3 || method == DraftMethod::kMtp;
}

constexpr int64_t kDraftsMax = 32;  // upper bound of the drafts of one sequence per step
constexpr int64_t kLookupMax = 64;  // upper bound of the length of a match, in tokens

struct SpeculationOptions {
  DraftMethod method = DraftMethod::kNone;
  int64_t num_speculative_tokens = 0;                    // drafts per sequence and step, 1 to kDraftsMax
  int64_t prompt_lookup_min = 5, prompt_lookup_max = 5;  // tokens of a match, 1 to kLookupMax
  double drafts_per_match = 0;                           // drafts per matching token; 0: no limit
  bool by_cost = true;                                   // false: verify all drafts whatever their cost
  std::shared_ptr<DraftSource> source = {};              // if set, replaces the method's own source
  // For benchmarks with random weights: drafts are random tokens, and drafts 0 to i are all accepted with
  // probability synthetic_acceptance[i], whatever tokens are sampled; must not increase with i. The answers
  // are meaningless. Empty: drafts are compared with samples.
  std::vector<double> synthetic_acceptance = {};
};
// kInvalidArgument names the option, its range and the value found.
Status check_speculation(const SpeculationOptions& options);

// The counters of vLLM's metrics, and not_finite.
struct DraftCounts {
  int64_t drafts = 0;        // pairs of a sequence and a step that verified at least one of its drafts
  int64_t draft_tokens = 0;  // verified drafts
  int64_t accepted = 0;      // accepted drafts
  std::array<int64_t, kDraftsMax> accepted_at = {};  // accepted drafts per draft position
  int64_t not_finite = 0;  // drafts that a draft layer could not compute, because its logits were not finite
};

// Running means of the probability that the draft at each position is accepted, given that all drafts before
// it are accepted.
class Acceptance {
 public:
  double at(int64_t place) const;
  // This sequence's mean if it differs from the mean of `all` sequences by more than chance explains,
  // otherwise the mean of all.
  double at(int64_t place, const Acceptance& all) const;
  // Records that the first `accepted` of `drafted` drafts were accepted. `weight`: weight of this step in the means.
  void add(int64_t drafted, int64_t accepted, double weight);

 private:
  std::array<float, kDraftsMax> rate_ = {};
  std::array<float, kDraftsMax> trials_ = {};  // number of trials in each mean
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Returns at most `limit` tokens that may follow the sequence. *budget is the number of tokens that all
  // sequences together may still index in this step; subtracts the tokens that this call indexes.
  virtual std::vector<int32_t> propose(Sequence* sequence, int64_t limit, int64_t* budget) = 0;
};

// Microseconds by which a GPU step takes longer if it is enqueued only after the host read the previous
// tokens.
constexpr double kWaitingUs = 60;

// Predicted costs in microseconds.
struct StepCosts {
  // Cost of a step that computes `tokens` tokens and samples after each of them. verifies: some sequence has
  // more than one token.
  std::function<double(int64_t tokens, bool verifies)> step = {};
  // Cost of a draft layer's drafts at one position for `rows` sequences. first: the first draft position.
  std::function<double(int64_t rows, bool first)> draft = {};
  // Added to the cost of a step with drafts, which cannot be enqueued before the previous step's tokens are
  // known.
  double waiting = 0;
};

// The rate of a step with `count` drafts: expected tokens divided by the cost of the step.
struct DraftRate {
  double rate = 0;
  size_t count = 0;
};
// Returns the smallest count whose rate is near the best, because cost models err by a few percent; 0 if no
// count is clearly better than `plain`, the rate without drafts. `rates`: in ascending order of count.
size_t worthwhile_count(double plain, std::span<const DraftRate> rates);

class Speculation {
 public:
  Speculation(const SpeculationOptions& options, StepCosts costs);

  // Sets Sequence::drafts of all decoding sequences, at most `rows` drafts in total, to maximize the expected
  // tokens divided by the cost of the step. With a draft layer, sets only the number of drafts. Returns
  // whether there is any draft.
  bool draft(std::span<Sequence* const> decoding, int64_t rows);
  // Whether the draft at position `place` is accepted, in a step that began when the sequence had `length`
  // tokens.
  bool accepts(int64_t sequence, int64_t length, size_t place, int32_t draft, int32_t sampled) const;
  void verified(Sequence* sequence, int64_t drafted, int64_t accepted);
  const DraftCounts& counts() const { return counts_; }

 private:
  // A draft, and the probability that it and all drafts before it are accepted.
  struct Candidate {
    double accepted;
    size_t sequence;
    int64_t place;  // position among the drafts of its sequence
  };
  size_t best_count(const std::vector<Candidate>& candidates, int64_t decoding);
  double cost_of(int64_t tokens, bool verifies);
  double cost_of_draft(int64_t rows, bool first);

  SpeculationOptions options_;
  StepCosts costs_;
  std::shared_ptr<DraftSource> source_;
  Acceptance all_;
  DraftCounts counts_;
  // Cached values: StepCosts::step by `verifies` and tokens, StepCosts::draft by `first` and rows; 0: not
  // computed yet.
  std::array<std::vector<double>, 2> cost_, draft_cost_;
  int64_t unprofitable_ = 0;  // steps for which no draft was worthwhile
};

}  // namespace sluice
