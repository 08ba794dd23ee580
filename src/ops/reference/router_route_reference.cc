#include "ops/fused/router_route.h"

namespace sluice {

Expectations reference(const RouterRoute::Problem& p, const RouterRoute::Args& a) {
  Expectations out = reference(RouterRoute::gate(p), RouterRoute::gate(a));
  out[0].slot = "logits";
  return out;
}

Expectations reference_given(const RouterRoute::Problem& p, const RouterRoute::Args& a) {
  return reference(p.route, static_cast<const RouteTopk::Args&>(a));
}

}  // namespace sluice
