#include "backends/cuda/router/router_gemm_terms.h"

#include <algorithm>

namespace sluice::cuda {
namespace {

// Predicted before the kernel existed, partly with the constants of
// router_gemm_tile.cc; later measurements were within 16% (docs/lab/cuda-router.md).
struct Constants {
  // includes the time to the first bytes and after the last, and instruction cache misses
  double launch_us = 1.3;
  double cluster_us = 1.25;       // added if CTAs of a cluster wait for each other
  double wave_us = 5.1;           // per wave of CTAs after the first
  double step_us = 0.16;          // per step of k, for any tile
  double weights_per_us = 112e3;  // rate at which one CTA loads w
  double tokens_per_us = 88e3;    // rate at which one CTA loads x
  // rate at which all CTAs load x from L2 or memory, with each byte counted once
  double memory_per_us = 3.8e6;
  double clocks_per_us = 1400;  // clock rate of an SM under load
  double split_clocks = 115;    // issue slots of a warpgroup to split its weights, per 16 values of k
  // latency from load to product per 16 values of k; nothing hides it if the CTA has only one warpgroup
  double alone_clocks = 170;
  // exchange of partial sums: fixed time; exchange_per_us: bytes that a CTA exchanges with its peers
  double exchange_us = 0.59;
  double exchange_per_us = 15.9e3;
};
constexpr Constants kCost;

int ceil_div(int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); }

}  // namespace

double router_terms_us(const RouterGemm::Problem& p, const RouterTilePlan& plan, const DeviceInfo& d) {
  constexpr int kTerms = 3, kProducts = kRouterStep / 16;
  const RouterTile& t = plan.tile;
  const int64_t clusters =
      int64_t{1} * ceil_div(p.experts, t.experts()) * ceil_div(std::max<int64_t>(p.tokens, 1), t.tokens);
  const double waves = ceil_div(clusters, router_resident_clusters(plan.blocks())),
               steps = ceil_div(ceil_div(p.hidden, kRouterStep), plan.splits);
  // A wgmma takes N / 2 clocks. Both warpgroups split their weights, on the same issue slots.
  const double clocks = kProducts * std::max(t.groups * std::max(kTerms * t.tokens / 2.0, kCost.split_clocks),
                                             kCost.alone_clocks);
  const double rows = t.experts(), row_bytes = kRouterStep * 4.0;
  const double fill =
      rows * row_bytes / kCost.weights_per_us + t.tokens * kRouterStep * 2.0 / kCost.tokens_per_us;
  const double memory =
      2.0 * static_cast<double>(p.tokens) * static_cast<double>(p.hidden) / kCost.memory_per_us / waves;
  const double cold =
      4.0 * static_cast<double>(p.experts) * static_cast<double>(p.hidden) / d.mem_bytes_per_us;
  const double parts = static_cast<double>(plan.splits - 1) / plan.splits;
  const double exchange = plan.splits > 1 ? kCost.cluster_us + kCost.exchange_us +
                                                parts * t.experts() * t.tokens * 4.0 / kCost.exchange_per_us
                                          : 0;
  const double step = std::max({kCost.step_us, fill, clocks / kCost.clocks_per_us});
  return kCost.launch_us + (waves - 1) * kCost.wave_us + std::max(waves * steps * step, cold) +
         std::max(0.0, waves * (memory - steps * step)) + exchange;
}

std::vector<Config> router_terms_configs(const RouterGemm::Problem& p, const DeviceInfo& d) {
  constexpr int kSplitsMax = 8;
  constexpr double kNearTheBest = 1.25;
  constexpr size_t kListed = 6;  // at most this many, because tests run all listed configurations
  std::vector<Config> all;
  for (const RouterTile& tile : kRouterTermTiles)
    for (int splits = 1; splits <= kSplitsMax; ++splits) {
      const RouterTilePlan plan{.tile = tile, .splits = splits};
      if (tile_memory(p, plan).stages == 0) continue;
      all.push_back({.name = router_tile_name(plan),
                     .cost_us = router_terms_us(p, plan, d),
                     .launches = {router_tile_launch(plan)}});
    }
  std::stable_sort(all.begin(), all.end(),
                   [](const Config& a, const Config& b) { return a.cost_us < b.cost_us; });
  size_t keep = 1;
  while (keep < std::min(all.size(), kListed) && all[keep].cost_us <= kNearTheBest * all[0].cost_us) ++keep;
  all.resize(std::min(all.size(), keep));
  return all;
}

}  // namespace sluice::cuda
