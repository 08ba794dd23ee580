// Router GEMM and routing in turn: two kernels of their own operations, with the logits between them. A candidate for each
// pair that is worth it, so that the choice between them is made where all choices are made.
//
// Wins    where no kernel does both, and with many tokens: the gate is then all there is.
// Loses   a launch, to router_route_fewtokens_sm90.
// Limits  those of the two kernels.
// Source  original; the contract is ops/router_route.h.
#include "backends/cuda/card.h"
#include "ops/router_route.h"

namespace sluice::cuda {

extern const Candidate<RouterGemm> router_gemm_gemv_sm90, router_gemm_splitk_sm90, router_gemm_wide_sm90,
    router_gemm_tile_sm90, router_gemm_fma_sm90;
extern const Candidate<RouteTopk> route_topk_fewtokens_sm90, route_topk_warp_sm90;

namespace {

template <const Candidate<RouterGemm>& kGate, const Candidate<RouteTopk>& kRoute>
struct Pair {
  static Refusal supports(const RouterRoute::Problem& p, const DeviceInfo& d) {
    Refusal r = kGate.supports(RouterRoute::gate(p), d);
    return r.append(kRoute.supports(p.route, d));
  }
  static double cost_us(const RouterRoute::Problem& p, const DeviceInfo& d) {
    return kGate.cost_us(RouterRoute::gate(p), d) + kRoute.cost_us(p.route, d);
  }
  // One after the other: the second starts when the first is done with it.
  static size_t workspace_bytes(const RouterRoute::Problem& p, const DeviceInfo& d) {
    return std::max(kGate.workspace_bytes(RouterRoute::gate(p), d), kRoute.workspace_bytes(p.route, d));
  }
  static Status enqueue(const RouterRoute::Problem& p, const RouterRoute::Args& a, Workspace w, Stream s) {
    SLUICE_TRY(kGate.enqueue(RouterRoute::gate(p), RouterRoute::gate(a), w, s));
    return kRoute.enqueue(p.route, a, w, s);
  }
};

template <const Candidate<RouterGemm>& kGate, const Candidate<RouteTopk>& kRoute>
Candidate<RouterRoute> in_turn(std::string_view name) {
  using Both = Pair<kGate, kRoute>;
  return {.name = name,
          .backend = Backend::kCuda,
          .supports = Both::supports,
          .cost_us = Both::cost_us,
          .workspace_bytes = Both::workspace_bytes,
          .enqueue = Both::enqueue,
          .batch_invariant = kGate.batch_invariant && kRoute.batch_invariant,
          .alignment_bytes = std::max(kGate.alignment_bytes, kRoute.alignment_bytes),
          .planned = kGate.planned || kRoute.planned,
          .in_turn = true};
}

}  // namespace

extern const Candidate<RouterRoute> router_route_gemv_fewtokens_sm90 =
    in_turn<router_gemm_gemv_sm90, route_topk_fewtokens_sm90>("cuda.router_route.gemv_fewtokens_sm90");
extern const Candidate<RouterRoute> router_route_gemv_warp_sm90 =
    in_turn<router_gemm_gemv_sm90, route_topk_warp_sm90>("cuda.router_route.gemv_warp_sm90");
extern const Candidate<RouterRoute> router_route_splitk_fewtokens_sm90 =
    in_turn<router_gemm_splitk_sm90, route_topk_fewtokens_sm90>("cuda.router_route.splitk_fewtokens_sm90");
extern const Candidate<RouterRoute> router_route_splitk_warp_sm90 =
    in_turn<router_gemm_splitk_sm90, route_topk_warp_sm90>("cuda.router_route.splitk_warp_sm90");
extern const Candidate<RouterRoute> router_route_wide_fewtokens_sm90 =
    in_turn<router_gemm_wide_sm90, route_topk_fewtokens_sm90>("cuda.router_route.wide_fewtokens_sm90");
extern const Candidate<RouterRoute> router_route_wide_warp_sm90 =
    in_turn<router_gemm_wide_sm90, route_topk_warp_sm90>("cuda.router_route.wide_warp_sm90");
extern const Candidate<RouterRoute> router_route_tile_fewtokens_sm90 =
    in_turn<router_gemm_tile_sm90, route_topk_fewtokens_sm90>("cuda.router_route.tile_fewtokens_sm90");
extern const Candidate<RouterRoute> router_route_tile_warp_sm90 =
    in_turn<router_gemm_tile_sm90, route_topk_warp_sm90>("cuda.router_route.tile_warp_sm90");
extern const Candidate<RouterRoute> router_route_fma_warp_sm90 =
    in_turn<router_gemm_fma_sm90, route_topk_warp_sm90>("cuda.router_route.fma_warp_sm90");

}  // namespace sluice::cuda
