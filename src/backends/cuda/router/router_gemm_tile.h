// The tiling of a problem by router_gemm_tile_sm90: data that its cost model (router_gemm_tile.cc) and its kernel share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// A CTA computes 64 * groups experts for `tokens` tokens, over one split of k.
struct RouterTile {
  int groups = 1;  // warpgroups with 64 experts each
  int tokens = 64;
  bool operator==(const RouterTile&) const = default;
  constexpr int experts() const { return 64 * groups; }
};
// The compiled tiles. Among equally fast tiles the first is chosen.
constexpr RouterTile kRouterTiles[] = {{1, 32},  {1, 48},  {1, 64},  {1, 80},  {1, 96},  {2, 64},
                                       {2, 96},  {2, 128}, {1, 128}, {2, 144}, {2, 160}, {2, 192},
                                       {2, 256}, {1, 144}, {1, 160}, {1, 192}};

// How CTAs of a cluster exchange their partial sums.
enum class RouterExchange {
  kCopies,  // one warp issues one bulk copy to each peer CTA
  kStores,  // all consumer threads issue 16-byte stores; adjacent threads store to adjacent addresses
};

// A cluster is `splits` splits of k x `beside` tiles of experts x `behind` tiles of tokens. CTAs with the same split and tokens
// share x by multicast: each of the `beside` CTAs loads its share of the rows for all of them. In the same way, `behind` CTAs with
// the same split and experts share w. Both numbers are powers of two.
struct RouterTilePlan {
  RouterTile tile;
  int splits = 1, beside = 1, behind = 1;
  RouterExchange exchange = RouterExchange::kCopies;
  bool operator==(const RouterTilePlan&) const = default;
  constexpr int blocks() const { return splits * beside * behind; }  // CTAs per cluster
};

// The mainloop steps through k by this many values.
constexpr int kRouterStep = 64;
// The TMA boxes of 128-byte rows that hold a step's weights, for weights of `bytes` each.
constexpr int router_boxes(size_t bytes) { return static_cast<int>(bytes) / 2; }
constexpr int router_boxes(DType w) { return w == DType::kF32 ? 2 : 1; }

// Shared memory of a CTA: a ring of stages, later reused for the tile of sums; the inbox, for sums from the other splits; barriers. A
// stage holds the problem's rows of w (for f32, the first half of all rows, then the second half), then the rows of x.
struct RouterTileMemory {
  int stages = 0;  // 0: the plan does not fit
  int weight_bytes = 0, stage_bytes = 0;
  int inbox_offset = 0, barriers_offset = 0, bytes = 0;
};
RouterTileMemory tile_memory(const RouterGemm::Problem& problem, const RouterTilePlan& plan);

// A configuration for each plan near the best one. The best plan has best_us. The other plans have best_us times
// their expected slowdown. The type of y and the bias do not matter.
std::vector<Config> router_tile_configs(const RouterGemm::Problem& problem, double best_us);
// Convert a plan to its name, and to a launch and back.
std::string router_tile_name(const RouterTilePlan& plan);
KernelLaunch router_tile_launch(const RouterTilePlan& plan);
RouterTilePlan router_tile_plan(const KernelLaunch& launch);
// The number of clusters of `blocks` CTAs, 1 to 8, that an H200 holds with one CTA per SM.
int router_resident_clusters(int blocks);
// For `explain`.
std::string router_tile_text(const RouterGemm::Problem& problem, const KernelLaunch& launch);

// Enqueues the problem with this plan. kInvalidArgument: no kernel was compiled for the plan, or the plan does not fit.
Status launch_tile(const RouterGemm::Problem& problem, const RouterGemm::Args& args,
                   const RouterTilePlan& plan, Stream stream);

}  // namespace sluice::cuda
