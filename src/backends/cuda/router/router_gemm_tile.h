// The tiling of a problem by router_gemm_tile_sm90, as its cost model (router_gemm_tile.cc) and its kernel share it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// The tile of a CTA: 64 * groups experts x `tokens` tokens, over one split of k.
struct RouterTile {
  int groups = 1;  // consumer warpgroups, with 64 experts each
  int tokens = 64;
  bool operator==(const RouterTile&) const = default;
  constexpr int experts() const { return 64 * groups; }
};
// The compiled tiles. If several are equally fast, the first is chosen.
constexpr RouterTile kRouterTiles[] = {{1, 32},  {1, 48},  {1, 64},  {1, 80},  {1, 96},  {2, 64},
                                       {2, 96},  {2, 128}, {1, 128}, {2, 144}, {2, 160}, {2, 192},
                                       {2, 256}, {1, 144}, {1, 160}, {1, 192}};

// How CTAs of a cluster exchange their partial sums.
enum class RouterExchange {
  kCopies,  // one warp issues a bulk copy to each peer CTA
  kStores,  // all consumer threads store 16 bytes at a time, adjacent threads to adjacent addresses
};

// A cluster is `splits` splits of k x `beside` tiles of experts x `behind` tiles of tokens. The `beside` CTAs
// with the same split and tokens share x by multicast: each loads 1 / beside of the rows for all of them. In
// the same way the `behind` CTAs with the same split and experts share w. beside and behind are powers of two.
struct RouterTilePlan {
  RouterTile tile;
  int splits = 1, beside = 1, behind = 1;
  RouterExchange exchange = RouterExchange::kCopies;
  bool operator==(const RouterTilePlan&) const = default;
  constexpr int blocks() const { return splits * beside * behind; }  // CTAs per cluster
};

// Values of k per step of the mainloop.
constexpr int kRouterStep = 64;
// TMA boxes of 128-byte rows per step of w, for weights of `bytes` bytes each.
constexpr int router_boxes(size_t bytes) { return static_cast<int>(bytes) / 2; }
constexpr int router_boxes(DType w) { return w == DType::kF32 ? 2 : 1; }

// Shared memory of a CTA: a ring of stages, later reused for the tile of sums; the inbox for sums from the other splits;
// barriers. A stage has the rows of w (f32: the first half of k for all rows, then the second half), then the rows of x.
struct RouterTileMemory {
  int stages = 0;  // 0: the plan does not fit
  int weight_bytes = 0, stage_bytes = 0;
  int inbox_offset = 0, barriers_offset = 0, bytes = 0;
};
RouterTileMemory tile_memory(const RouterGemm::Problem& problem, const RouterTilePlan& plan);

// One configuration per plan near the best. The best plan costs best_us; the others cost best_us
// times their expected slowdown. The result does not depend on the type of y or on a bias.
std::vector<Config> router_tile_configs(const RouterGemm::Problem& problem, double best_us);
// A plan's name; its conversion to a launch; its conversion back.
std::string router_tile_name(const RouterTilePlan& plan);
KernelLaunch router_tile_launch(const RouterTilePlan& plan);
RouterTilePlan router_tile_plan(const KernelLaunch& launch);
// The number of clusters of `blocks` CTAs (1 to 8) that are resident on an H200 with one CTA per SM.
int router_resident_clusters(int blocks);
// The plan in words, for `explain`.
std::string router_tile_text(const RouterGemm::Problem& problem, const KernelLaunch& launch);

// Enqueues the problem with this plan. Returns kInvalidArgument if no kernel is compiled for the plan, or if the plan does not fit.
Status launch_tile(const RouterGemm::Problem& problem, const RouterGemm::Args& args,
                   const RouterTilePlan& plan, Stream stream);

}  // namespace sluice::cuda
