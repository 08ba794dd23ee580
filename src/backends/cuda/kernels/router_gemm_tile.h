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
  // Steps of the sum for which x is asked at a time, in runs of run * 128 bytes of each row. Above 1, hidden is a
  // multiple of 64 and tokens of 8, and w and x have rings of their own.
  int run = 1;
  bool operator==(const RouterTile&) const = default;
  constexpr int experts() const { return 64 * groups; }
};
// Those that the kernel is compiled for; of equally fast ones the first is taken.
constexpr RouterTile kRouterTiles[] = {{1, 32},  {1, 48},  {1, 64},  {1, 96},  {2, 64},  {2, 96},
                                       {2, 128}, {1, 128}, {2, 144}, {2, 160}, {2, 192}, {2, 256}};

// Further ones, that only launch_tile takes: measured first, then chosen.
constexpr RouterTile kRouterRunTiles[] = {{2, 64, 2},  {2, 64, 4},  {2, 64, 8},  {2, 96, 2}, {2, 96, 4},
                                          {2, 128, 2}, {2, 128, 4}, {2, 144, 2}, {2, 192, 2}};

// How blocks of a cluster send each other their sums.
enum class RouterExchange {
  kCopies,  // one bulk copy to each, issued by one warp
  kStores,  // 16 bytes a thread at a time, neighbouring threads side by side, by all that multiply
};

struct RouterTilePlan {
  RouterTile tile;
  int splits = 1;  // parts of the sum: the blocks of a cluster
  RouterExchange exchange = RouterExchange::kCopies;
};

// The sum is cut in steps of this many values.
constexpr int kRouterStep = 64;

// Shared memory of a block: a ring of stages, over which sums for the other parts come to lie; what they send; barriers.
// Where x comes in runs, the stages hold w alone, and a ring of runs is behind them.
struct RouterTileMemory {
  int stages = 0;  // 0: the plan does not fit
  int runs = 0;
  int inbox_offset = 0, barriers_offset = 0, bytes = 0;
};
RouterTileMemory tile_memory(const RouterTilePlan& plan, int64_t hidden);

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
