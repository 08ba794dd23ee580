#include "ops/fused/router_route.h"

namespace sluice {

Refusal RouterRoute::validate(const Problem& p) {
  Refusal r = RouterGemm::validate(gate(p));
  r.append(RouteTopk::validate(p.route));
  r.need(p.route.input == RoutingInput::kLogits, "input=logits (the gate makes them)",
         "input=" + std::string(word(p.route.input)));
  return r;
}

double RouterRoute::bytes(const Problem& p) {
  const double read_again = static_cast<double>(bytes_of(p.route.logits, p.route.tokens * p.route.experts));
  return RouterGemm::bytes(gate(p)) + RouteTopk::bytes(p.route) - read_again;
}

}  // namespace sluice
