#include "engine/speculation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/printable.h"
#include "engine/scheduler.h"

namespace sluice {
namespace {

constexpr double kFirstGuess = 0.7,
                 kNextPlace = 0.95;  // of a place nobody has tried: a share of the place before it
constexpr double kOwnWeight = 0.1, kSharedWeight = 0.02;  // of the newest step in running means
constexpr double kWorthwhile = 1.03;  // a smaller gain is within the error of a cost model
constexpr int64_t kProbeEvery = 32;   // drafts that do not pay are tried once in so many steps
constexpr int64_t kIndexedTokens = 8 * NgramIndex::kTokensOfCall;  // of all sequences, in one step

class NgramSource final : public DraftSource {
 public:
  explicit NgramSource(const SpeculationOptions& options) : options_(options) {}
  std::vector<int32_t> propose(Sequence* s, int64_t most, int64_t* budget) override {
    if (!s->ngrams) s->ngrams.emplace(options_.prompt_lookup_min);
    if (!s->ngrams->update(s->tokens, budget)) return {};
    const NgramMatch match = s->ngrams->find(s->tokens, options_.prompt_lookup_max);
    if (match.length == 0) return {};
    if (options_.drafts_per_match > 0)
      most =
          std::min(most, static_cast<int64_t>(options_.drafts_per_match * static_cast<double>(match.length)));
    const auto from = s->tokens.begin() + match.end;
    return {from, from + std::min(most, std::ssize(s->tokens) - match.end)};
  }

 private:
  SpeculationOptions options_;
};

// A number from 0 to 1 of these three.
double hashed(int64_t a, int64_t b, size_t c) {
  uint64_t x = static_cast<uint64_t>(a) * 0x9E3779B97F4A7C15u ^
               static_cast<uint64_t>(b) * 0xBF58476D1CE4E5B9u ^ (c + 1);
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>((x ^ x >> 31) >> 11) * 0x1p-53;
}

class RandomSource final : public DraftSource {
 public:
  std::vector<int32_t> propose(Sequence* s, int64_t most, int64_t*) override {
    std::vector<int32_t> out;
    // Tokens that the sequence has, so that they are of the vocabulary.
    for (int64_t i = 0; i < most; ++i)
      out.push_back(
          s->tokens[static_cast<size_t>(hashed(s->id, std::ssize(s->tokens), static_cast<size_t>(i) + 64) *
                                        static_cast<double>(s->tokens.size() - 1))]);
    return out;
  }
};

std::shared_ptr<DraftSource> source_of(const SpeculationOptions& options) {
  if (options.source) return options.source;
  if (!options.synthetic_acceptance.empty()) return std::make_shared<RandomSource>();
  return std::make_shared<NgramSource>(options);
}

Status check_count(const char* name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return {};
  return invalid(std::string(name) + ": wanted 1 to " + std::to_string(most) + ", found " +
                 std::to_string(value));
}

}  // namespace

Status check_speculation(const SpeculationOptions& o) {
  if (o.method == DraftMethod::kNone) return {};
  SLUICE_TRY(check_count("num_speculative_tokens", o.num_speculative_tokens, kDraftsMax));
  SLUICE_TRY(check_count("prompt_lookup_max", o.prompt_lookup_max, kLookupMax));
  if (!(o.drafts_per_match >= 0 && o.drafts_per_match <= kDraftsMax))
    return invalid("suffix_decoding_max_spec_factor: wanted 0 to " + std::to_string(kDraftsMax) + ", found " +
                   number_text(o.drafts_per_match));
  return check_count("prompt_lookup_min", o.prompt_lookup_min, o.prompt_lookup_max);
}

double Acceptance::at(int64_t place) const {
  if (place < known_) return rate_[static_cast<size_t>(place)];
  return place == 0 ? kFirstGuess : kNextPlace * at(place - 1);
}

void Acceptance::add(int64_t drafted, int64_t accepted, double weight) {
  for (int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
    const double rate = at(i);
    known_ = std::max(known_, i + 1);
    rate_[static_cast<size_t>(i)] = static_cast<float>(rate + weight * ((i < accepted ? 1 : 0) - rate));
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
  return hashed(sequence, length, place) * before < rates[place];
}

double Speculation::cost_of(int64_t tokens, bool verifies) {
  const auto i = static_cast<size_t>(tokens);
  std::vector<double>& known = cost_[verifies ? 1 : 0];
  if (i >= known.size()) known.resize(i + 1, 0);
  if (known[i] == 0) known[i] = costs_.step(tokens, verifies);
  return known[i];
}

// Candidates are in descending order. A gain may follow a loss, because kernels have steps in their costs. Of many sequences only counts
// in coarse steps are tried, so that few shapes of steps are captured.
size_t Speculation::best_count(const std::vector<Candidate>& candidates, int64_t decoding) {
  const auto own = static_cast<double>(decoding);
  double best = kWorthwhile * own / cost_of(decoding, false), tokens = own;
  size_t count = 0;
  const size_t every = std::max<size_t>(1, static_cast<size_t>(decoding) / 4);
  for (size_t i = 0; i < candidates.size(); ++i) {
    tokens += candidates[i].survives;
    if ((i + 1) % every != 0 && i + 1 < candidates.size()) continue;
    const double rate = tokens / (cost_of(decoding + static_cast<int64_t>(i) + 1, true) + costs_.waiting);
    if (rate > best) best = rate, count = i + 1;
  }
  return count;
}

bool Speculation::draft(std::span<Sequence* const> decoding, int64_t rows) {
  std::vector<Candidate> candidates;
  int64_t budget = kIndexedTokens;
  for (size_t i = 0; i < decoding.size(); ++i) {
    Sequence& s = *decoding[i];
    s.drafts.clear();
    const int64_t room =
        s.tokens_max - std::ssize(s.tokens) - 1;  // the token behind the drafts is sampled, too
    const int64_t most = std::min(options_.num_speculative_tokens, room);
    if (most < 1) continue;
    s.drafts = source_->propose(&s, most, &budget);
    s.drafted_at = std::ssize(s.tokens);
    if (!s.acceptance) s.acceptance = all_;
    double survives = 1;
    for (int64_t j = 0; j < std::ssize(s.drafts); ++j)
      candidates.push_back({survives *= (s.acceptance->at(j) + all_.at(j)) / 2, i});
  }
  if (candidates.empty()) return false;
  // Of one sequence each token survives less often than the one before it, so a prefix of this order has prefixes of drafts.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.survives > b.survives; });
  candidates.resize(std::min(candidates.size(), static_cast<size_t>(std::max<int64_t>(rows, 0))));
  size_t count = options_.by_cost ? best_count(candidates, std::ssize(decoding)) : candidates.size();
  // Texts change: what did not pay is tried again now and then.
  if (count == 0 && !candidates.empty() && ++rejected_ % kProbeEvery == 0) count = 1;
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
  if (s->acceptance) s->acceptance->add(drafted, accepted, kOwnWeight);
  all_.add(drafted, accepted, kSharedWeight);
}

}  // namespace sluice
