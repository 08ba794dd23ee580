#include "ops/fused/norm_router_route.h"

#include <cmath>

#include "ops/reference/norm_factor_reference.h"

namespace sluice {

Refusal NormRouterRoute::validate(const Problem& p) {
  Refusal r = RouterRoute::validate(p.router);
  r.append(RmsNorm::validate(norm(p)));
  return r;
}

double NormRouterRoute::bytes(const Problem& p) {
  const double read_again =
      static_cast<double>(bytes_of(p.router.x, p.router.route.tokens * p.router.hidden));
  return RouterRoute::bytes(p.router) + RmsNorm::bytes(norm(p)) - read_again;
}

Expectations reference(const NormRouterRoute::Problem& p, const NormRouterRoute::Args& a) {
  Expectations out = reference(NormRouterRoute::norm(p), NormRouterRoute::norm(a));
  out[0].slot = "normed";
  return out;
}

Expectations reference_given(const NormRouterRoute::Problem& p, const NormRouterRoute::Args& a) {
  Expectations out = reference_given(p.router, NormRouterRoute::router(a));
  Expectations logits = reference(p.router, NormRouterRoute::router(a));
  const int64_t experts = p.router.route.experts, hidden = p.router.hidden;
  std::vector<double> w(static_cast<size_t>(hidden));
  for (int64_t t = 0; t < p.router.route.tokens; ++t) {
    const NormFactor norm(NormRouterRoute::norm(p), NormRouterRoute::norm(a), a.normed, t, 0x1p-7);
    for (int64_t e = 0; e < experts; ++e) {
      for (int64_t h = 0; h < hidden; ++h) w[static_cast<size_t>(h)] = std::abs(load2(a.w, e, h));
      const auto at = static_cast<size_t>(t * experts + e);
      double& bound = logits[0].bound[at];
      bound = widened(p.router.route.logits, logits[0].value[at], bound, norm.more(w));
    }
  }
  for (Expected& e : logits) out.push_back(std::move(e));
  return out;
}

}  // namespace sluice
