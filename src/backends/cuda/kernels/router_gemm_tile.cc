#include "backends/cuda/kernels/router_gemm_tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "backends/cuda/kernels/router_gemm_tile_measured.h"

namespace sluice::cuda {
namespace {

constexpr int kFewestStages = 3, kMostStages = 16;
constexpr int kBlockMemory = 227 << 10;
constexpr int kMostBlocks = 8;              // of a cluster on any Hopper
constexpr int kRowBytes = 2 * kRouterStep;  // of w or x in a stage

int ceil_div(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

// Clusters of 1 to 8 blocks that an H200 runs at a time, one block in an SM.
constexpr int kResidentClusters[] = {132, 66, 39, 30, 22, 17, 15, 15};
// Fitted to 1900 measurements of 72 problems on an H200, weighted towards the fastest plans of each; 7% off on average.
constexpr double kLaunchUs = 0.83;       // with the first bytes and the last
constexpr double kClusterUs = 1.25;      // more where blocks of a cluster wait for each other
constexpr double kWaveUs = 5.1;          // where blocks come one after the other
constexpr double kStepUs = 0.141;        // of a stage, whatever its size
constexpr double kWeightsPerUs = 112e3;  // bytes of w that one block asks for
constexpr double kTokensPerUs = 88e3;    // bytes of x
constexpr double kMemoryPerUs = 3.8e6;   // bytes of x, once, from wherever they are
constexpr double kTensorPerUs = 1256;    // clocks of an SM's tensor cores under load
constexpr double kExchangeUs =
    0.59;  // of parts of a sum, and of their bytes between one block and the others
constexpr double kExchangePerUs = 15.9e3;

double plan_us(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  const RouterTile& t = plan.tile;
  const int64_t clusters = int64_t{1} * ceil_div(ceil_div(p.experts, t.experts()), plan.beside) *
                           ceil_div(ceil_div(p.tokens, t.tokens), plan.behind);
  const double waves = ceil_div(clusters, kResidentClusters[plan.blocks() - 1]),
               steps = ceil_div(ceil_div(p.hidden, kRouterStep), plan.splits);
  const double weights = static_cast<double>(std::min<int64_t>(t.experts(), p.experts)) / plan.behind,
               tokens = static_cast<double>(t.tokens) / plan.beside;
  const double fill = kRowBytes * (weights / kWeightsPerUs + tokens / kTokensPerUs);
  const double tensor =
      4 * t.groups * (t.tokens / 2.0) / kTensorPerUs;  // a multiplication takes N / 2 clocks
  const double memory = 2.0 * static_cast<double>(p.tokens * p.hidden) / kMemoryPerUs / waves;
  const double parts = static_cast<double>(plan.splits - 1) / plan.splits;
  const double exchange =
      plan.splits > 1 ? kExchangeUs + parts * t.experts() * t.tokens * sizeof(float) / kExchangePerUs : 0;
  return kLaunchUs + (plan.blocks() > 1 ? kClusterUs : 0) + (waves - 1) * kWaveUs +
         waves * (std::max(steps * std::max({kStepUs, fill, tensor}), memory) + exchange);
}

// Rows of w in a stage: those that there are, and no fewer than keep what warpgroups read within the stage.
int weight_rows(const RouterGemm::Problem& p, const RouterTile& t) {
  constexpr int kRows = 32;
  return std::min(t.experts(), kRows * ceil_div(std::max<int64_t>(p.experts, t.experts() - t.tokens), kRows));
}

}  // namespace

RouterTileMemory tile_memory(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  const RouterTile& t = plan.tile;
  const int steps = ceil_div(p.hidden, kRouterStep), part = ceil_div(steps, plan.splits),
            most = std::min(kMostStages, part);
  RouterTileMemory m;
  const int rows = weight_rows(p, t);
  m.weight_bytes = rows * kRowBytes;
  m.stage_bytes = m.weight_bytes + t.tokens * kRowBytes;
  const int row = (t.experts() + 4) * static_cast<int>(sizeof(float));  // of sums
  const int sums = t.tokens * row, inbox = (plan.splits - 1) * ceil_div(t.tokens, plan.splits) * row;
  const int barrier_bytes = (2 * kMostStages + 1) * static_cast<int>(sizeof(uint64_t));
  const int limit = kBlockMemory - barrier_bytes - inbox;
  const auto power_of_two = [](int n) { return (n & (n - 1)) == 0; };
  const bool shares = plan.blocks() <= kMostBlocks && power_of_two(plan.beside) &&
                      power_of_two(plan.behind) && t.tokens % (8 * plan.beside) == 0 &&
                      rows % (8 * plan.behind) == 0;
  if (!shares || plan.splits > steps || sums > limit || limit < std::min(kFewestStages, most) * m.stage_bytes)
    return {};
  m.stages = std::min(limit / m.stage_bytes, most);
  m.inbox_offset = std::max(m.stages * m.stage_bytes, sums);
  m.barriers_offset = m.inbox_offset + inbox;
  m.bytes = m.barriers_offset + barrier_bytes;
  return m;
}

namespace {

// A measured problem, for the model: what it says of that plan there, and the sizes as logarithms.
struct Near {
  double model_us, hidden, experts, tokens;
  double octaves_to(const Near& o) const {
    return std::abs(hidden - o.hidden) + std::abs(experts - o.experts) + std::abs(tokens - o.tokens);
  }
};
Near near(const RouterGemm::Problem& p, double model_us) {
  const auto log = [](int64_t n) { return std::log2(static_cast<double>(n)); };
  return {model_us, log(p.hidden), log(p.experts), log(p.tokens)};
}

constexpr size_t kMeasured = std::size(kRouterTilesMeasured);
std::array<Near, kMeasured> measured() {
  std::array<Near, kMeasured> all;
  for (size_t i = 0; i < kMeasured; ++i) {
    const RouterTileMeasured& m = kRouterTilesMeasured[i];
    const RouterGemm::Problem p{.tokens = m.tokens, .experts = m.experts, .hidden = m.hidden};
    all[i] = near(p, plan_us(p, m.plan));
  }
  return all;
}

}  // namespace

// The model alone picks plans that are 7% slower than the fastest: what blocks that ask for the same lines at the same time
// save each other, it does not know. So it only moves what was measured: a plan that was the fastest of a problem near by
// takes its time there, times what the model says of the two problems. The further that problem is, the less it is
// trusted; where the tokens are others, so may be those of a tile. Leaving out each measured problem in turn, the choice
// from the others is 1.4% slower than its fastest plan on average.
RouterTileChoice choose_tile(const RouterGemm::Problem& wanted) {
  constexpr double kDoubtPerOctave = 0.6, kDoubtOfOtherTile = 0.1, kSameTokens = 0.15, kFurther = 1.0;
  static const std::array<Near, kMeasured> problems = measured();
  constexpr int64_t kFewestTokens = 192;  // that were measured; fewer are cut like these
  const RouterGemm::Problem p = RouterGemm::at_tokens(wanted, std::max(wanted.tokens, kFewestTokens));
  const Near here = near(p, 0);
  double nearest = problems[0].octaves_to(here);
  for (const Near& n : problems) nearest = std::min(nearest, n.octaves_to(here));
  RouterTileChoice best;
  double least = 0;
  const auto consider = [&](const RouterTilePlan& plan, double us, double doubt) {
    const double doubted = us * (1 + doubt);
    if ((least != 0 && doubted >= least) || tile_memory(p, plan).stages == 0) return;
    least = doubted;
    best = {plan, us};
  };
  for (size_t i = 0; i < kMeasured; ++i) {
    const RouterTileMeasured& m = kRouterTilesMeasured[i];
    const double away = problems[i].octaves_to(here), ratio = m.us / problems[i].model_us;
    if (away > nearest + kFurther) continue;
    const double doubt = kDoubtPerOctave * away;
    consider(m.plan, ratio * plan_us(p, m.plan), doubt);
    if (std::abs(problems[i].tokens - here.tokens) <= kSameTokens) continue;
    for (const RouterTile& tile : kRouterTiles) {
      if (tile.groups != m.plan.tile.groups) continue;
      RouterTilePlan plan = m.plan;
      plan.tile = tile;
      consider(plan, ratio * plan_us(p, plan), doubt + kDoubtOfOtherTile);
    }
  }
  if (least == 0)
    best.plan = {}, best.us = plan_us(p, {});  // too short a sum for the parts of all that are near
  return best;
}

}  // namespace sluice::cuda
