#include "backends/cuda/experts/cost/profile.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace sluice::cuda {
namespace {

// The upper half of the standard normal quantiles at the middle of 24 equal shares; the lower half is symmetric.
constexpr int kShares = 24;
constexpr double kQuantiles[kShares / 2] = {0.0522, 0.1573, 0.2641, 0.3741, 0.4888, 0.6103,
                                            0.7416, 0.8871, 1.0545, 1.2582, 1.5341, 2.0368};

// The assumed routing: each of `tokens` tokens chooses `slots` of `routed` experts.
struct Draws {
  double tokens = 0, slots = 0, routed = 0;
};
Draws draws_of(const ExpertGemm::Problem& p) {
  constexpr double kDefaultSlots = 6;  // slots per token, if rows of x are not gathered from tokens
  const double experts = static_cast<double>(p.experts),
               routed = static_cast<double>(std::max(p.experts, p.experts_routed)),
               rows = ExpertGemm::expected_rows(p) * routed / experts,  // of all expert-parallel ranks
      slots = std::min({routed, rows, p.slots > 0 ? static_cast<double>(p.slots) : kDefaultSlots});
  return {slots > 0 ? rows / slots : 0, slots, routed};
}

// A bin of consecutive Zipf ranks: their geometric mean, and their number. Bins get wider with the rank.
struct Bin {
  double rank, ranks;
};

// A token chooses the expert of rank i with probability 1 - exp(-scale / i). The scale is such
// that the probabilities add up to the slots of a token. All token counts of a model have the
// same scale, and planning asks for it thousands of times, so the last result is cached.
double scale_of(std::span<const Bin> bins, double routed, double slots) {
  struct Last {
    double routed = 0, slots = 0, scale = 0;
  };
  static thread_local Last last;
  if (last.routed == routed && last.slots == slots) return last.scale;
  double low = 0, high = 1e6;
  for (int step = 0; step < 40; ++step) {
    const double scale = (low + high) / 2;
    double sum = 0;
    for (const Bin& bin : bins) sum += bin.ranks * -std::expm1(-scale / bin.rank);
    (sum < slots ? low : high) = scale;
  }
  last = {routed, slots, high};
  return high;
}

}  // namespace

RowProfile uniform_profile(const ExpertGemm::Problem& p) {
  RowProfile out;
  const Draws draws = draws_of(p);
  const double experts = static_cast<double>(p.experts), mean = draws.tokens * draws.slots / draws.routed,
               taken = draws.slots / draws.routed, missed = 1 - taken;
  constexpr double kCountsTo = 14;
  if (mean <= kCountsTo && missed > 0) {
    double chance = std::pow(missed, draws.tokens);
    for (int n = 1; n < RowProfile::kKindsMax && n < draws.tokens + 1; ++n) {
      chance *= (draws.tokens - n + 1) / n * taken / missed;
      const double these = experts * chance;
      if (these > 1e-3 || n < mean) out.add(n, these);
    }
    return out;
  }
  const double deviation = std::sqrt(mean * missed);
  for (const double q : kQuantiles) {
    out.add(std::max(1.0, mean - q * deviation), experts / kShares);
    out.add(mean + q * deviation, experts / kShares);
  }
  return out;
}

RowProfile zipf_profile(const ExpertGemm::Problem& p) {
  const Draws draws = draws_of(p);
  const double experts = static_cast<double>(p.experts), routed = draws.routed;
  std::array<Bin, RowProfile::kKindsMax> bins{};
  int count = 0;
  for (double from = 1; from <= routed && count < RowProfile::kKindsMax;) {
    const double to = std::min(routed, std::max(from, std::floor(from * 1.2)));
    bins[static_cast<size_t>(count++)] = {std::sqrt(from * to), to - from + 1};
    from = to + 1;
  }
  const double scale = scale_of(std::span(bins).first(static_cast<size_t>(count)), routed, draws.slots);
  RowProfile out;
  for (int i = 0; i < count; ++i) {
    const Bin& bin = bins[static_cast<size_t>(i)];
    const double taken = -std::expm1(-scale / bin.rank), rows = draws.tokens * taken,
                 active = taken < 1 ? -std::expm1(draws.tokens * std::log1p(-taken)) : 1;
    // With few tokens, an expert of this bin may get no rows; if it gets any, it has rows / active on average.
    if (active > 0) out.add(rows / active, bin.ranks * experts / routed * active);
  }
  return out;
}

}  // namespace sluice::cuda
