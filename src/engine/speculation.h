// Speculative decoding: chooses the draft tokens that a step verifies behind the last known token of each sequence. Host data only.
//
// A sampled token depends only on the sequence's seed, its position and the tokens before it. A step that computes k drafts samples
// k + 1 tokens: one behind the last known token, and one behind each draft. A sample is accepted if every draft before it equals the
// sample in its place. So answers do not depend on drafts.
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
  kNgram,   // drafts are the tokens that followed an earlier occurrence of the last tokens
  kSuffix,  // the same, with at most drafts_per_match drafts per token of the match
  kEagle3,  // a draft head computes them (nn/draft_layer.h)
  kMtp,     // the model's layer for multi-token prediction computes them
};
constexpr std::string_view text(DraftMethod method) {
  constexpr std::string_view kWords[] = {"none", "ngram", "suffix", "eagle3", "mtp"};
  return kWords[static_cast<size_t>(method)];
}

// Whether a draft layer computes the drafts.
constexpr bool has_draft_layer(DraftMethod method) {
  return method == DraftMethod::kEagle3 || method == DraftMethod::kMtp;
}

constexpr int64_t kDraftsMax = 32;  // drafts of one sequence in one step
constexpr int64_t kLookupMax = 64;  // tokens of a match

struct SpeculationOptions {
  DraftMethod method = DraftMethod::kNone;
  int64_t num_speculative_tokens = 0;                    // limit per sequence and step, 1 to kDraftsMax
  int64_t prompt_lookup_min = 5, prompt_lookup_max = 5;  // tokens of a match, 1 to kLookupMax
  double drafts_per_match = 0;                           // 0: no limit
  bool by_cost = true;                                   // false: verify every draft
  std::shared_ptr<DraftSource> source = {};              // replaces the method's own source
  // For benchmarks with random weights: drafts are random tokens, and the first, second, ... draft is accepted in these shares of the
  // steps, whatever was sampled. The answers are meaningless. Shares do not increase. Empty: drafts are compared with samples.
  std::vector<double> synthetic_acceptance = {};
};
// kInvalidArgument names the option, the wanted range and the found value.
Status check_speculation(const SpeculationOptions& options);

// The counters of vLLM's metrics.
struct DraftCounts {
  int64_t drafts = 0;                                // steps of a sequence that verified at least one draft
  int64_t draft_tokens = 0;                          // verified drafts
  int64_t accepted = 0;                              // accepted drafts
  std::array<int64_t, kDraftsMax> accepted_at = {};  // accepted drafts by their place
  int64_t not_finite = 0;  // drafts that a draft layer could not choose, because its scores were not finite
};

// The probability that the draft at each place is accepted, given that all drafts before it are: running means.
class Acceptance {
 public:
  double at(int64_t place) const;
  // The mean of one sequence where it differs from `all` sequences by more than chance, else the mean of all.
  double at(int64_t place, const Acceptance& all) const;
  // The first `accepted` of `drafted` drafts were accepted. `weight` is the share of this step in the means.
  void add(int64_t drafted, int64_t accepted, double weight);

 private:
  std::array<float, kDraftsMax> rate_ = {};
  std::array<float, kDraftsMax> trials_ = {};  // that the mean stands for
};

class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Returns at most `most` tokens that may follow the sequence. Lowers `budget`, the tokens that all sequences together may still index
  // in this step.
  virtual std::vector<int32_t> propose(Sequence* sequence, int64_t most, int64_t* budget) = 0;
};

// Host time in microseconds that is added to a step of a GPU if it waits for the tokens of the step before.
constexpr double kWaitingUs = 60;

// Predicted microseconds.
struct StepCosts {
  // Of a step that computes `tokens` tokens and samples behind each. verifies: some sequence has more than one of them.
  std::function<double(int64_t tokens, bool verifies)> step = {};
  // Of one draft for each of `rows` sequences by a draft head. first: of their first drafts.
  std::function<double(int64_t rows, bool first)> draft = {};
  // Added to a step with drafts, which cannot be enqueued before the previous step's tokens are known.
  double waiting = 0;
};

// The rate of a step with `count` drafts: expected tokens divided by its cost.
struct DraftRate {
  double rate = 0;
  size_t count = 0;
};
// The first count whose rate is near the best, because cost models are no better than a few percent; 0: none is worth its trouble.
// `plain`: the rate without drafts. Counts ascend.
size_t worthwhile_count(double plain, std::span<const DraftRate> rates);

class Speculation {
 public:
  Speculation(const SpeculationOptions& options, StepCosts costs);

  // Sets Sequence::drafts of all sequences that decode, `rows` drafts in total at most. Maximises the expected tokens divided by the cost
  // of the step. Returns whether there is any draft. With a draft layer it only sets their number.
  bool draft(std::span<Sequence* const> decoding, int64_t rows);
  // Whether the draft at `place` is accepted, in the step that began with `length` tokens of the sequence.
  bool accepts(int64_t sequence, int64_t length, size_t place, int32_t draft, int32_t sampled) const;
  void verified(Sequence* sequence, int64_t drafted, int64_t accepted);
  const DraftCounts& counts() const { return counts_; }

 private:
  // One draft, with the probability that it and all drafts before it are accepted.
  struct Candidate {
    double accepted;
    size_t sequence;
    int64_t place;  // in the drafts of its sequence
  };
  size_t best_count(const std::vector<Candidate>& candidates, int64_t decoding);
  double cost_of(int64_t tokens, bool verifies);
  double cost_of_draft(int64_t rows, bool first);

  SpeculationOptions options_;
  StepCosts costs_;
  std::shared_ptr<DraftSource> source_;
  Acceptance all_;
  DraftCounts counts_;
  // StepCosts::step by `verifies` and tokens, and StepCosts::draft by `first` and rows; 0: not computed yet.
  std::array<std::vector<double>, 2> cost_, draft_cost_;
  int64_t unprofitable_ = 0;  // steps whose drafts did not pay
};

}  // namespace sluice
