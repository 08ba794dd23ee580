#include "backends/cuda/kernels/router_gemm_tile.h"

#include <algorithm>

namespace sluice::cuda {
namespace {

constexpr int kFewestStages = 3, kMostStages = 16;
// Of the rings, in per cent, for x where it comes in runs: it comes from further away than w.
constexpr int kFewestRuns = 2, kRunsShare = 60;
constexpr int kBlockMemory = 227 << 10;
constexpr int kRowBytes = 2 * kRouterStep;  // of w or x in a stage

int ceil_div(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

// Clusters of 1 to 8 blocks that an H200 runs at a time, one block in an SM.
constexpr int kResidentClusters[] = {132, 66, 39, 30, 22, 17, 15, 15};
// Longer tiles leave a ring too short to split.
constexpr int kMostTokensOfPart = 160;

// Fitted to 850 measurements on an H200, weighted towards the fastest plans of each problem; 6% off on average.
constexpr double kLaunchUs = 2.5;          // with the first bytes and the last
constexpr double kWaveUs = 2.8;            // another of these, where blocks come one after the other
constexpr double kStepUs = 0.138;          // of a stage, whatever its size
constexpr double kWeightsPerUs = 184e3;    // bytes of w into one block's shared memory
constexpr double kTokensPerUs = 109e3;     // bytes of x
constexpr double kL2BytesPerUs = 9.45e6;   // into all of them
constexpr double kMemoryPerUs = 3.5e6;     // bytes of x, once, from wherever they are
constexpr double kTensorPerUs = 1311;      // clocks of an SM's tensor cores under load
constexpr double kExchangePerUs = 18.9e3;  // bytes between one block and the others of its cluster

double plan_us(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  const RouterTile& t = plan.tile;
  const int64_t tiles =
      int64_t{1} * ceil_div(p.experts, t.experts()) * ceil_div(std::max<int64_t>(p.tokens, 1), t.tokens);
  const int64_t resident = kResidentClusters[plan.splits - 1];
  const double waves = ceil_div(tiles, resident),
               steps = ceil_div(ceil_div(p.hidden, kRouterStep), plan.splits);
  const double blocks = static_cast<double>(std::min(tiles, resident) * plan.splits);
  const double rows = static_cast<double>(std::min<int64_t>(t.experts(), p.experts)) + t.tokens;
  const double fill = kStepUs + kRowBytes * (t.experts() / kWeightsPerUs + t.tokens / kTokensPerUs);
  const double traffic = blocks * kRowBytes * rows / kL2BytesPerUs;
  // A multiplication of 64 x N x 16 takes the tensor cores N / 2 clocks, and reading its operands (64 + N) / 4.
  const double tensor = 4 * t.groups * std::max(t.tokens / 2.0, (64 + t.tokens) / 4.0) / kTensorPerUs;
  const double memory = 2.0 * static_cast<double>(p.tokens * p.hidden) / kMemoryPerUs / waves;
  const double parts = static_cast<double>(plan.splits - 1) / plan.splits;
  const double exchange = parts * t.experts() * t.tokens * sizeof(float) / kExchangePerUs;
  return kLaunchUs + (waves - 1) * kWaveUs +
         waves * (std::max(steps * std::max({fill, traffic, tensor}), memory) + exchange);
}

}  // namespace

RouterTileMemory tile_memory(const RouterTilePlan& plan, int64_t hidden) {
  const RouterTile& t = plan.tile;
  const int steps = ceil_div(hidden, kRouterStep), part = ceil_div(steps, plan.splits),
            most = std::min(kMostStages, part);
  const bool in_runs = t.run > 1;
  const int stage = (t.experts() + (in_runs ? 0 : t.tokens)) * kRowBytes;
  const int run = in_runs ? t.run * t.tokens * kRowBytes : 0;
  const int row = (t.experts() + 4) * static_cast<int>(sizeof(float));  // of sums
  const int sums = t.tokens * row, inbox = (plan.splits - 1) * ceil_div(t.tokens, plan.splits) * row;
  const int barriers = (in_runs ? 4 : 2) * kMostStages + 1,
            barrier_bytes = barriers * static_cast<int>(sizeof(uint64_t));
  const int limit = kBlockMemory - barrier_bytes - inbox;
  RouterTileMemory m;
  if (in_runs) {
    const int most_runs = std::min(kMostStages, ceil_div(part, t.run));
    m.runs = std::min(std::max(kFewestRuns, limit * kRunsShare / 100 / run), most_runs);
  }
  const int left = limit - m.runs * run;
  if (plan.splits > steps || sums > limit || left < std::min(kFewestStages, most) * stage) return {};
  m.stages = std::min(left / stage, most);
  m.inbox_offset = std::max(m.stages * stage + m.runs * run, sums);
  m.barriers_offset = m.inbox_offset + inbox;
  m.bytes = m.barriers_offset + barrier_bytes;
  return m;
}

RouterTileChoice choose_tile(const RouterGemm::Problem& p) {
  RouterTileChoice best;
  constexpr int kMostSplits = 8;  // blocks of a cluster on any Hopper
  for (const RouterTile& tile : kRouterTiles)
    for (int splits = 1; splits <= kMostSplits; ++splits) {
      const RouterTilePlan plan{.tile = tile, .splits = splits};
      if (splits > 1 && tile.tokens > kMostTokensOfPart) continue;
      if (tile_memory(plan, p.hidden).stages == 0) continue;
      const double us = plan_us(p, plan);
      if (best.us == 0 || us < best.us) best = {plan, us};
    }
  return best;
}

}  // namespace sluice::cuda
