// How router_gemm_tile_sm90 cuts a problem into blocks: data between its cost model (router_gemm_tile.cc) and its kernel.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// A block computes 64 * groups experts for `tokens` tokens, over one part of the sum.
struct RouterTile {
  int groups = 1;  // warpgroups, of 64 experts each
  int tokens = 64;
  bool operator==(const RouterTile&) const = default;
  constexpr int experts() const { return 64 * groups; }
};
// Those that the kernel is compiled for; of equally fast ones the first is taken.
constexpr RouterTile kRouterTiles[] = {{1, 32},  {1, 48},  {1, 64},  {1, 80},  {1, 96},  {2, 64},
                                       {2, 96},  {2, 128}, {1, 128}, {2, 144}, {2, 160}, {2, 192},
                                       {2, 256}, {1, 144}, {1, 160}, {1, 192}};

// How blocks of a cluster send each other their sums.
enum class RouterExchange {
  kCopies,  // one bulk copy to each, issued by one warp
  kStores,  // 16 bytes a thread at a time, neighbouring threads side by side, by all that multiply
};

// A cluster is `splits` parts of the sum x `beside` tiles of experts x `behind` tiles of tokens. Blocks of the same part
// and tokens fetch x together, `beside` of them, each its share of the rows for all; blocks of the same part and experts
// fetch w so, `behind` of them. Both are powers of two.
struct RouterTilePlan {
  RouterTile tile;
  int splits = 1, beside = 1, behind = 1;
  RouterExchange exchange = RouterExchange::kCopies;
  constexpr int blocks() const { return splits * beside * behind; }  // of a cluster
};

// The sum is cut in steps of this many values.
constexpr int kRouterStep = 64;

// Shared memory of a block: a ring of stages, over which sums for the other parts come to lie; what they send; barriers.
// A stage has the rows of w that there are, and behind them those of x.
struct RouterTileMemory {
  int stages = 0;  // 0: the plan does not fit
  int weight_bytes = 0, stage_bytes = 0;
  int inbox_offset = 0, barriers_offset = 0, bytes = 0;
};
RouterTileMemory tile_memory(const RouterGemm::Problem& problem, const RouterTilePlan& plan);

// The plan that the cost model likes best, and its time. The type of y and the bias do not matter.
struct RouterTileChoice {
  RouterTilePlan plan;
  double us = 0;
};
RouterTileChoice choose_tile(const RouterGemm::Problem& problem);

// Enqueues the problem cut in this way; kInvalidArgument names a plan that no kernel was compiled for or that does not fit.
Status launch_tile(const RouterGemm::Problem& problem, const RouterGemm::Args& args,
                   const RouterTilePlan& plan, Stream stream);

}  // namespace sluice::cuda
