#include "ops/fused/route_group.h"

#include "ops/bounds.h"

namespace sluice {

Refusal RouteGroup::validate(const Problem& p) {
  Refusal r = RouteTopk::validate(p.route);
  const bool map = p.route.scope == ExpertScope::kMap;
  if (map) need_between(r, "mapped_experts", p.mapped_experts, 1, 2048);
  r.need(map || p.mapped_experts == 0, "mapped_experts=0 (only scope=map has a map)", "mapped_experts",
         p.mapped_experts);
  return r.accepted() ? GroupRows::validate(group(p)) : r;
}

double RouteGroup::bytes(const Problem& p) {
  const GroupRows::Problem g = group(p);
  return RouteTopk::bytes(p.route) + GroupRows::bytes(g) - 4.0 * static_cast<double>(g.tokens * g.slots);
}

}  // namespace sluice
