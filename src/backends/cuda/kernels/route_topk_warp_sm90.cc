// Top-k routing, one warp a token: scores stay in registers, top_k rounds of a warp-wide maximum by
// redux.sync. A card: planned, not built.
//
// Wins    always: no shared memory, no second pass, one launch.
// Loses   large top_k: rounds are serial.
// Limits  see supports().
// Source  original; the contract, ties included, is ops/route_topk.h.
#include "backends/cuda/card.h"
#include "ops/route_topk.h"

namespace sluice::cuda {
namespace {

constexpr double kLatencyUs = 1.6;  // launch, one dependent load, store
constexpr double kRoundUs = 0.04;   // 60 to 80 clocks
constexpr double kTokensPerSm = 32;

Refusal supports(const RouteTopk::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  r.need(p.input == RoutingInput::kLogits, "input logits (there is nothing to choose)",
         "input=" + std::string(word(p.input)));
  const bool grouped = routing_rule(p.method).grouped && p.groups > 1;
  r.need(!grouped || p.experts / p.groups <= 32, "experts / groups <= 32 (a lane holds one of a group)",
         "experts / groups", p.experts / std::max<int64_t>(p.groups, 1));
  r.need(!grouped || p.groups <= 32, "groups <= 32 (a lane ranks one group)", "groups", p.groups);
  return r;
}

double cost_us(const RouteTopk::Problem& p, const DeviceInfo& d) {
  const double waves = std::ceil(static_cast<double>(std::max<int64_t>(p.tokens, 1)) /
                                 (kTokensPerSm * static_cast<double>(d.cores)));
  return kLatencyUs + kRoundUs * static_cast<double>(p.top_k) * waves +
         RouteTopk::bytes(p) / d.mem_bytes_per_us;
}

}  // namespace

extern const Candidate<RouteTopk> route_topk_warp_sm90 = {
    .name = "cuda.route_topk.warp_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouteTopk>,
    .enqueue = no_kernel<RouteTopk>,
    .batch_invariant = true,
    .planned = true,
};

}  // namespace sluice::cuda
