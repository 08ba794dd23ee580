#include "backends/cuda/kernels/router_gemm_tile.h"

#include <algorithm>

namespace sluice::cuda {
namespace {

constexpr int kFewestStages = 3, kMostStages = 16;
constexpr int kBlockMemory = 227 << 10;  // of one block alone in its SM
constexpr int kPairMemory = 113 << 10;   // of one of two

int64_t steps_of(int64_t hidden) { return (hidden + kRouterStep - 1) / kRouterStep; }

}  // namespace

RouterTileMemory tile_memory(const RouterTilePlan& plan, int64_t hidden) {
  const RouterTile& t = plan.tile;
  constexpr int kRowBytes = 2 * kRouterStep;
  const int stage = (t.experts() + t.tokens) * kRowBytes;
  const int row = (t.experts() + 4) * static_cast<int>(sizeof(float));  // of sums
  const int sums = t.tokens * row,
            inbox = (plan.splits - 1) * ((t.tokens + plan.splits - 1) / plan.splits) * row;
  constexpr int kBarrierBytes = (2 * kMostStages + 1) * static_cast<int>(sizeof(uint64_t));
  const int limit = (plan.resident > 1 ? kPairMemory : kBlockMemory) - kBarrierBytes - inbox;
  const int most =
      static_cast<int>(std::min<int64_t>(kMostStages, (steps_of(hidden) + plan.splits - 1) / plan.splits));
  if (plan.splits > steps_of(hidden) || sums > limit || limit < std::min(kFewestStages, most) * stage)
    return {};
  RouterTileMemory m;
  m.stages = std::min(limit / stage, most);
  m.inbox_offset = std::max(m.stages * stage, sums);
  m.barriers_offset = m.inbox_offset + inbox;
  m.bytes = m.barriers_offset + kBarrierBytes;
  return m;
}

RouterTileChoice choose_tile(const RouterGemm::Problem& p, const DeviceInfo& d) {
  RouterTilePlan plan;
  plan.tile = {1, 64};
  plan.splits = static_cast<int>(std::min<int64_t>(8, steps_of(p.hidden)));
  plan.resident = 2;
  (void)d;
  return {plan, 10};
}

}  // namespace sluice::cuda
