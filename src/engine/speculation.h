// Speculative decoding: which tokens a step verifies behind the last known one of each sequence. Host data only.
//
// The token of a sequence at a position depends on its seed, its position and the tokens before it alone. A step that computes k drafts
// behind the last known token samples k + 1 tokens; each counts if all drafts before it equal the tokens that were sampled. So the answer
// is the one without drafts, whatever is drafted.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  kNgram,   // what followed the last prompt_lookup_min to prompt_lookup_max tokens where they occurred before
  kSuffix,  // the same, with drafts_per_match
};
constexpr std::string_view text(DraftMethod method) {
  constexpr std::string_view kWords[] = {"none", "ngram", "suffix"};
  return kWords[static_cast<size_t>(method)];
}

constexpr int64_t kDraftsMax = 32;  // of one sequence in one step
constexpr int64_t kLookupMax = 64;  // tokens of a match

struct SpeculationOptions {
  DraftMethod method = DraftMethod::kNone;
  int64_t num_speculative_tokens = 0;  // of one sequence in one step at most; 1 to kDraftsMax
  int64_t prompt_lookup_min = 5, prompt_lookup_max = 5;  // tokens of a match, 1 to kLookupMax
  double drafts_per_match =
      0;                // of kSuffix: drafts are at most so many times the tokens of the match; 0: no bound
  bool by_cost = true;  // false: every draft is verified, whether it pays or not
  std::shared_ptr<DraftSource> source = {};  // in place of the method's own: a caller's drafts
  // For measurements with random weights, whose texts nobody can guess: drafts are random, and of so many steps the first, second, ...
  // draft counts as accepted, whatever was sampled. Not increasing. Answers mean nothing. Empty: drafts are compared.
  std::vector<double> synthetic_acceptance = {};
};
// kInvalidArgument: the option, what was wanted, and what was found.
Status check_speculation(const SpeculationOptions& options);

// vLLM's counters.
struct DraftCounts {
  int64_t drafts = 0;                                // steps of one sequence that verified at least one token
  int64_t draft_tokens = 0;                          // that were verified
  int64_t accepted = 0;                              // of those
  std::array<int64_t, kDraftsMax> accepted_at = {};  // by their place in the draft
};

// How likely each place of a draft is accepted once those before it are: running means.
class Acceptance {
 public:
  double at(int64_t place) const;
  // Of `drafted` tokens the first `accepted` were.
  void add(int64_t drafted, int64_t accepted, double weight);

 private:
  std::array<float, kDraftsMax> rate_ = {};
  int64_t known_ = 0;  // places that have been tried
};

// Where drafts come from.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // At most `most` tokens that may follow. `budget`: tokens of prompts that may still be looked through in this step.
  virtual std::vector<int32_t> propose(Sequence* sequence, int64_t most, int64_t* budget) = 0;
};

// Microseconds of a step.
struct StepCosts {
  // That computes so many tokens and samples behind each; verifies: more than one of some sequence.
  std::function<double(int64_t tokens, bool verifies)> step = {};
  double waiting = 0;  // for the tokens of the step before, which a step without drafts need not know
};

class Speculation {
 public:
  Speculation(const SpeculationOptions& options, StepCosts costs);

  // Sets Sequence::drafts of those that decode. At most `rows` drafts in all: those for which (tokens expected) / (cost of the step) is
  // largest, by the running means of what was accepted. Returns whether there are any.
  bool draft(std::span<Sequence* const> decoding, int64_t rows);
  // Whether the draft at `place` of the step that began behind `length` tokens is what was sampled there.
  bool accepts(int64_t sequence, int64_t length, size_t place, int32_t draft, int32_t sampled) const;
  void verified(Sequence* sequence, int64_t drafted, int64_t accepted);
  const DraftCounts& counts() const { return counts_; }

 private:
  struct Candidate {
    double survives;  // the token counts with this probability
    size_t sequence;
  };
  size_t best_count(const std::vector<Candidate>& candidates, int64_t decoding);
  double cost_of(int64_t tokens, bool verifies);

  SpeculationOptions options_;
  StepCosts costs_;
  std::shared_ptr<DraftSource> source_;
  Acceptance all_;  // what a sequence begins with
  DraftCounts counts_;
  std::array<std::vector<double>, 2> cost_;  // by StepCosts::step's arguments, once they are known
  int64_t rejected_ = 0;                     // calls in a row whose drafts did not pay
};

}  // namespace sluice
