#include "backends/cuda/experts/profile.h"

#include <algorithm>
#include <cmath>

namespace sluice::cuda {
namespace {

// Quantiles of a normal distribution at the middle of 24 equal shares.
constexpr int kShares = 24;
constexpr double kQuantiles[kShares / 2] = {0.0522, 0.1573, 0.2641, 0.3741, 0.4888, 0.6103,
                                            0.7416, 0.8871, 1.0545, 1.2582, 1.5341, 2.0368};

}  // namespace

RowProfile uniform_profile(const ExpertGemm::Problem& p) {
  RowProfile out;
  const double rows = ExpertGemm::expected_rows(p), experts = static_cast<double>(p.experts);
  const double mean = rows / experts;
  constexpr double kPoissonTo = 14;
  if (mean <= kPoissonTo) {
    double chance = std::exp(-mean);
    for (int n = 1; n < RowProfile::kKindsMost; ++n) {
      chance *= mean / n;
      const double these = experts * chance;
      if (these > 1e-3 || n < mean) out.add(n, std::min(these, rows / n));
    }
    return out;
  }
  const double deviation = std::sqrt(mean);
  for (const double q : kQuantiles) {
    out.add(std::max(1.0, mean - q * deviation), experts / kShares);
    out.add(mean + q * deviation, experts / kShares);
  }
  return out;
}

RowProfile zipf_profile(const ExpertGemm::Problem& p) {
  constexpr double kDefaultSlots = 6;  // of a token, where rows are not gathered from tokens
  const double experts = static_cast<double>(p.experts),
               routed = static_cast<double>(std::max(p.experts, p.experts_routed)),
               slots = std::min(routed, p.slots > 0 ? static_cast<double>(p.slots) : kDefaultSlots);
  const double tokens = ExpertGemm::expected_rows(p) * routed / experts / slots;
  // Ranks in bins that widen.
  struct Bin {
    double rank, ranks;
  };
  std::array<Bin, RowProfile::kKindsMost> bins{};
  int count = 0;
  for (double from = 1; from <= routed && count < RowProfile::kKindsMost;) {
    const double to = std::min(routed, std::max(from, std::floor(from * 1.2)));
    bins[static_cast<size_t>(count++)] = {std::sqrt(from * to), to - from + 1};
    from = to + 1;
  }
  // A token takes rank i with probability 1 - exp(-scale / i); the probabilities add up to its slots.
  double low = 0, high = 1e6;
  for (int step = 0; step < 40; ++step) {
    const double scale = (low + high) / 2;
    double sum = 0;
    for (int i = 0; i < count; ++i)
      sum += bins[static_cast<size_t>(i)].ranks * -std::expm1(-scale / bins[static_cast<size_t>(i)].rank);
    (sum < slots ? low : high) = scale;
  }
  RowProfile out;
  for (int i = 0; i < count; ++i) {
    const Bin& bin = bins[static_cast<size_t>(i)];
    const double rows = tokens * -std::expm1(-high / bin.rank), here = bin.ranks * experts / routed;
    // Below one row, some experts have one row and others none.
    out.add(std::max(rows, 1.0), here * std::min(rows, 1.0));
  }
  return out;
}

}  // namespace sluice::cuda
