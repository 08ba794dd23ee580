// Router GEMM and routing in turn: the two kernels of their own operations, with the logits between them.
//
// Wins    always on a CPU: the logits of some tokens stay in a near cache, and a call costs next to nothing.
// Loses   nothing yet.
// Limits  those of the two kernels.
// Source  original; the contract is ops/router_route.h.
#include "backends/cpu/card.h"
#include "ops/router_route.h"

namespace sluice::cpu {

extern const Candidate<RouterGemm> router_gemm_dot;
extern const Candidate<RouteTopk> route_topk_tournament;

namespace {

Refusal supports(const RouterRoute::Problem& p, const DeviceInfo& d) {
  Refusal r = router_gemm_dot.supports(RouterRoute::gate(p), d);
  return r.append(route_topk_tournament.supports(p.route, d));
}

double cost_us(const RouterRoute::Problem& p, const DeviceInfo& d) {
  return router_gemm_dot.cost_us(RouterRoute::gate(p), d) + route_topk_tournament.cost_us(p.route, d);
}

// Neither kernel has any: both cards say so.
Status enqueue(const RouterRoute::Problem& p, const RouterRoute::Args& a, Workspace none, Stream s) {
  SLUICE_TRY(router_gemm_dot.enqueue(RouterRoute::gate(p), RouterRoute::gate(a), none, s));
  return route_topk_tournament.enqueue(p.route, a, none, s);
}

}  // namespace

extern const Candidate<RouterRoute> router_route_in_turn = {
    .name = "cpu.router_route.in_turn",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterRoute>,
    .enqueue = enqueue,
    .batch_invariant = true,
    .in_turn = true,
};

}  // namespace sluice::cpu
