// How router_gemm_tile_sm90 cuts a problem into blocks: data between its cost model (router_gemm_tile.cc) and its kernel.
#pragma once
#include <cstdint>

#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// A block computes 64 * groups experts for `tokens` tokens, over one part of the sum.
struct RouterTile {
  int groups = 1;  // warpgroups, of 64 experts each
  int tokens = 64;
  bool operator==(const RouterTile&) const = default;
  int experts() const { return 64 * groups; }
};

struct RouterTilePlan {
  RouterTile tile;
  int splits = 1;    // parts of the sum: the blocks of a cluster
  int resident = 1;  // blocks that are to fit into one SM
};

// The sum is cut in steps of this many values.
constexpr int kRouterStep = 64;

// Shared memory of a block: a ring of stages, over which sums for the other parts come to lie; what they send; barriers.
struct RouterTileMemory {
  int stages = 0;  // 0: the plan does not fit
  int inbox_offset = 0, barriers_offset = 0, bytes = 0;
};
RouterTileMemory tile_memory(const RouterTilePlan& plan, int64_t hidden);

// The plan that the cost model likes best, and what it says of it. The type of y and the bias do not matter.
struct RouterTileChoice {
  RouterTilePlan plan;
  double us = 0;
};
RouterTileChoice choose_tile(const RouterGemm::Problem& problem, const DeviceInfo& device);

// Enqueues the problem cut in this way; kInvalidArgument names a plan that no kernel was compiled for or that does not fit.
Status launch_tile(const RouterGemm::Problem& problem, const RouterGemm::Args& args,
                   const RouterTilePlan& plan, Stream stream);

}  // namespace sluice::cuda
