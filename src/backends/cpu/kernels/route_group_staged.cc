// Routing and grouping one after the other, by the kernels of the two operations.
//
// Wins    always: a stream runs work at once, so there is nothing to save between the two.
// Loses   nothing yet.
// Limits  those of the two kernels.
// Source  original; the contract is ops/route_group.h.
#include "backends/cpu/card.h"
#include "ops/route_group.h"

namespace sluice::cpu {

extern const Candidate<RouteTopk> route_topk_tournament;
extern const Candidate<GroupRows> group_rows_counting;

namespace {

using Problem = RouteGroup::Problem;
using Args = RouteGroup::Args;

Refusal supports(const Problem& p, const DeviceInfo& d) {
  const Refusal r = route_topk_tournament.supports(p.route, d);
  return r.accepted() ? group_rows_counting.supports(RouteGroup::group(p), d) : r;
}

double cost_us(const Problem& p, const DeviceInfo& d) {
  return route_topk_tournament.cost_us(p.route, d) + group_rows_counting.cost_us(RouteGroup::group(p), d);
}

size_t workspace_bytes(const Problem& p, const DeviceInfo& d) {
  return std::max(route_topk_tournament.workspace_bytes(p.route, d),
                  group_rows_counting.workspace_bytes(RouteGroup::group(p), d));
}

Status enqueue(const Problem& p, const Args& a, Workspace w, Stream s) {
  SLUICE_TRY(route_topk_tournament.enqueue(p.route, a, w, s));
  return group_rows_counting.enqueue(RouteGroup::group(p), RouteGroup::group(a), w, s);
}

}  // namespace

extern const Candidate<RouteGroup> route_group_staged = {
    .name = "cpu.route_group.staged",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
    .in_turn = true,
};

}  // namespace sluice::cpu
