#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/printable.h"
#include "base/random.h"
#include "engine/scheduler.h"

namespace sluice {
namespace {

constexpr double
    kFirstGuess = 0.7,
    // initial guesses: rate of the first draft; rate of each further draft divided by the rate before it
    kNextPlace = 0.95;
// weight of one step in the means of a sequence and of all
constexpr double kOwnWeight = 0.05, kAllWeight = 0.005;
constexpr double kGuessTrials = 4;  // a guess weighs as much as this many trials
// a difference of more standard deviations is not chance
constexpr double kDeviations = 2;
constexpr double kWorthwhile = 1.03, kNearBest = 0.98;  // margins: cost models err by a few percent
// every 32nd step without a worthwhile draft tries one
constexpr int64_t kProbeEvery = 32;
constexpr int64_t kIndexedTokens = 8 * NgramIndex::kTokensOfCall;

class NgramSource final : public DraftSource {
 public:
  explicit NgramSource(const SpeculationOptions& options) : options_(options) {}
  std::vector<int32_t> propose(Sequence* s, int64_t limit, int64_t* budget) override {
    if (!s->ngrams) s->ngrams.emplace(options_.prompt_lookup_min);
    if (!s->ngrams->update(s->tokens, budget)) return {};
    const NgramMatch match = s->ngrams->find(s->tokens, options_.prompt_lookup_max);
    if (match.length == 0) return {};
    if (options_.drafts_per_match > 0)
      limit = std::min(limit,
                       static_cast<int64_t>(options_.drafts_per_match * static_cast<double>(match.length)));
    const auto from = s->tokens.begin() + match.end;
    return {from, from + std::min(limit, std::ssize(s->tokens) - match.end)};
  }

 private:
  SpeculationOptions options_;
};

// Proposes placeholder tokens. The draft layer computes the real drafts once their number is chosen.
class HeadSource final : public DraftSource {
 public:
  std::vector<int32_t> propose(Sequence* s, int64_t limit, int64_t*) override {
    return std::vector<int32_t>(s->has_features ? static_cast<size_t>(limit) : 0);
  }
};

// Proposes random tokens of the sequence, which are certainly in the vocabulary.
class RandomSource final : public DraftSource {
 public:
  std::vector<int32_t> propose(Sequence* s, int64_t limit, int64_t*) override {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < limit; ++i)
      out.push_back(s->tokens[static_cast<size_t>(random_.integer(0, std::ssize(s->tokens) - 1))]);
    return out;
  }

 private:
  Random random_{1};
};

std::shared_ptr<DraftSource> source_of(const SpeculationOptions& options) {
  if (options.source) return options.source;
  if (has_draft_layer(options.method)) return std::make_shared<HeadSource>();
  if (!options.synthetic_acceptance.empty()) return std::make_shared<RandomSource>();
  return std::make_shared<NgramSource>(options);
}

Status check_count(const char* name, int64_t value, int64_t limit) {
  if (value >= 1 && value <= limit) return {};
  return invalid(std::string(name) + ": wanted 1 to " + std::to_string(limit) + ", found " +
                 std::to_string(value));
}

}  // namespace

Status check_speculation(const SpeculationOptions& o) {
  if (o.method == DraftMethod::kNone) return {};
  SLUICE_TRY(check_count("num_speculative_tokens", o.num_speculative_tokens, kDraftsMax));
  if (has_draft_layer(o.method)) return {};
  SLUICE_TRY(check_count("prompt_lookup_max", o.prompt_lookup_max, kLookupMax));
  SLUICE_TRY(check_count("prompt_lookup_min", o.prompt_lookup_min, o.prompt_lookup_max));
  return check_range("suffix_decoding_max_spec_factor", o.drafts_per_match, 0, kDraftsMax);
}

double Acceptance::at(int64_t place) const {
  const auto i = static_cast<size_t>(place);
  if (trials_[i] > 0) return rate_[i];
  return place == 0 ? kFirstGuess : kNextPlace * at(place - 1);
}

double Acceptance::at(int64_t place, const Acceptance& all) const {
  const auto i = static_cast<size_t>(place);
  const double mean = all.at(place), own = rate_[i];
  // At least 0.05, because the mean of the first few trials may be 0 or 1, and its variance 0.
  const double spread = std::max(mean * (1 - mean), 0.05);
  const bool differs = trials_[i] * (own - mean) * (own - mean) > kDeviations * kDeviations * spread;
  return differs ? own : mean;
}

void Acceptance::add(int64_t drafted, int64_t accepted, double weight) {
  for (int64_t place = 0; place < std::min(drafted, accepted + 1); ++place) {
    const auto i = static_cast<size_t>(place);
    // At first the plain mean of the trials, in which the initial guess counts as kGuessTrials trials; then
    // an exponential moving average.
    const double share = std::max(weight, 1 / (kGuessTrials + 1 + trials_[i])), before = at(place);
    rate_[i] = static_cast<float>(before + share * ((place < accepted ? 1 : 0) - before));
    trials_[i] = static_cast<float>(std::min(trials_[i] + 1.0, 1 / weight));
  }
}

Speculation::Speculation(const SpeculationOptions& options, StepCosts costs)
    : options_(options), costs_(std::move(costs)), source_(source_of(options)) {}

bool Speculation::accepts(int64_t sequence, int64_t length, size_t place, int32_t draft,
                          int32_t sampled) const {
  const std::vector<double>& rates = options_.synthetic_acceptance;
  if (rates.empty()) return draft == sampled;
  if (place >= rates.size()) return false;
  const double before = place == 0 ? 1 : rates[place - 1];
  const uint64_t counter = static_cast<uint64_t>(length * kDraftsMax) + place;
  return uniform(static_cast<uint64_t>(sequence), counter) * before < rates[place];
}

namespace {

double known_or(std::vector<double>* known, int64_t at, const std::function<double()>& compute) {
  const auto i = static_cast<size_t>(at);
  if (i >= known->size()) known->resize(i + 1, 0);
  if ((*known)[i] == 0) (*known)[i] = compute();
  return (*known)[i];
}

}  // namespace

double Speculation::cost_of(int64_t tokens, bool verifies) {
  return known_or(&cost_[verifies ? 1 : 0], tokens, [&] { return costs_.step(tokens, verifies); });
}

double Speculation::cost_of_draft(int64_t rows, bool first) {
  if (!costs_.draft || rows == 0) return 0;
  return known_or(&draft_cost_[first ? 1 : 0], rows, [&] { return costs_.draft(rows, first); });
}

size_t worthwhile_count(double plain, std::span<const DraftRate> rates) {
  double best = kWorthwhile * plain;
  for (const DraftRate& r : rates) best = std::max(best, r.rate);
  for (const DraftRate& r : rates)
    if (r.rate >= kNearBest * best && r.rate > kWorthwhile * plain) return r.count;
  return 0;
}

// Returns how many candidates the next step verifies, from the first; they are in descending order of
// acceptance. With many sequences, considers only a few counts, so that few step shapes are captured.
size_t Speculation::best_count(const std::vector<Candidate>& candidates, int64_t decoding) {
  const size_t every = std::max<size_t>(1, static_cast<size_t>(decoding) / 2);
  std::vector<DraftRate> rates;
  double tokens = static_cast<double>(decoding);
  const double without = cost_of(decoding, false), plain = tokens / without;
  double drafting = 0;
  std::array<int64_t, kDraftsMax> rows_at = {};  // drafts at each draft position so far
  for (size_t i = 0; i < candidates.size(); ++i) {
    tokens += candidates[i].accepted;
    const int64_t place = candidates[i].place, rows = ++rows_at[static_cast<size_t>(place)];
    drafting += cost_of_draft(rows, place == 0) - cost_of_draft(rows - 1, place == 0);
    if ((i + 1) % every != 0 && i + 1 < candidates.size()) continue;
    // max(): the cost model of verifying steps assumes the maximum number of rows per sequence. If sequences
    // have fewer rows, it underestimates how many sequences' keys and values are read, and so the cost.
    const double step = std::max(without, cost_of(decoding + static_cast<int64_t>(i) + 1, true));
    const double cost = step + drafting + costs_.waiting;
    rates.push_back({tokens / cost, i + 1});
  }
  return worthwhile_count(plain, rates);
}

bool Speculation::draft(std::span<Sequence* const> decoding, int64_t rows) {
  std::vector<Candidate> candidates;
  int64_t budget = kIndexedTokens;
  for (size_t i = 0; i < decoding.size(); ++i) {
    Sequence& s = *decoding[i];
    s.drafts.clear();
    s.drafted_at = std::ssize(s.tokens);
    // -1: the step also samples one token after the last draft.
    const int64_t limit = std::min(options_.num_speculative_tokens, s.tokens_max - std::ssize(s.tokens) - 1);
    if (limit < 1) continue;
    s.drafts = source_->propose(&s, limit, &budget);
    double accepted = 1;
    for (int64_t place = 0; place < std::ssize(s.drafts); ++place)
      candidates.push_back({accepted *= s.acceptance.at(place, all_), i, place});
  }
  if (candidates.empty()) return false;
  // Candidate::accepted never increases along a sequence's drafts, so every prefix of this order contains a
  // prefix of each sequence's drafts.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.accepted > b.accepted; });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(std::max<int64_t>(rows, 0))));
  size_t count = options_.by_cost ? best_count(candidates, std::ssize(decoding)) : candidates.size();
  // Tries an occasional draft to update the means, because the text may have become more predictable.
  if (count == 0 && !candidates.empty() && ++unprofitable_ % kProbeEvery == 0) count = 1;
  std::vector<size_t> kept(decoding.size());
  for (size_t i = 0; i < count; ++i) ++kept[candidates[i].sequence];
  for (size_t i = 0; i < decoding.size(); ++i)
    decoding[i]->drafts.resize(std::min(decoding[i]->drafts.size(), kept[i]));
  return count > 0;
}

void Speculation::verified(Sequence* s, int64_t drafted, int64_t accepted) {
  ++counts_.drafts;
  counts_.draft_tokens += drafted;
  counts_.accepted += accepted;
  for (int64_t i = 0; i < accepted; ++i) ++counts_.accepted_at[static_cast<size_t>(i)];
  s->acceptance.add(drafted, accepted, kOwnWeight);
  all_.add(drafted, accepted, kAllWeight);
}

}  // namespace sluice
