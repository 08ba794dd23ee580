#include "ops/norm_router_group.h"

namespace sluice {

Refusal NormRouterGroup::validate(const Problem& p) {
  Refusal r = NormRouterRoute::validate(p.front);
  if (r.accepted()) r.append(RouteGroup::validate(route(p)));
  return r;
}

double NormRouterGroup::bytes(const Problem& p) {
  return NormRouterRoute::bytes(p.front) + RouteGroup::bytes(route(p)) -
         RouteTopk::bytes(p.front.router.route);
}

Expectations reference(const NormRouterGroup::Problem& p, const NormRouterGroup::Args& a) {
  return reference(p.front, static_cast<const NormRouterRoute::Args&>(a));
}

// The ids are held against the reference as well, so groups of the ids that are there are exact.
Expectations reference_given(const NormRouterGroup::Problem& p, const NormRouterGroup::Args& a) {
  Expectations out = reference_given(p.front, static_cast<const NormRouterRoute::Args&>(a));
  for (Expected& e : reference(NormRouterGroup::group(p), NormRouterGroup::group(a)))
    out.push_back(std::move(e));
  return out;
}

}  // namespace sluice
