#pragma once
#include "ops/route_topk.h"
#include "ops/router_gemm.h"

namespace sluice {

// RouterGemm followed by RouteTopk, fused: from a layer's input to experts and weights.
//
//   logits         = RouterGemm of x and w, with gate_bias as bias (ops/router_gemm.h)
//   ids, weights,  = RouteTopk (ops/route_topk.h) of these logits after rounding to their type
//   captured
//
// Shapes     x [tokens, hidden], w [experts, hidden], gate_bias [experts]; logits [tokens, experts] is an
//            output here and is always written; rows of x and logits may be strided. The other shapes and all limits are
//            as in router_gemm.h and route_topk.h.
// Types      x bf16 or f32; w and gate_bias both bf16 or both f32; logits bf16 or f32.
// Bytes      reads x, w, gate_bias once; writes logits, ids, weights once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit of either header, or if input is not logits.
//            run: never fails on data.
// Exactness  logits: RouterGemm's bound. The other outputs: RouteTopk's bounds with respect to the logits of the same run
//            (reference_given), because two logits closer than their bound may come in either order.
// Source     router_gemm.h and route_topk.h; vLLM (GateLinear) and SGLang (TopK) run the two unfused, back to back.
struct RouterRoute {
  static constexpr std::string_view kName = "router_route";
  static constexpr std::string_view kSummary =
      "scores every expert for every token, chooses experts and gives each of them a weight";
  struct Problem {
    RouteTopk::Problem route;  // its tokens, experts and logits type also apply to the router's product
    int64_t hidden = 2880;
    DType x = DType::kBF16, w = DType::kBF16;
    bool gate_bias = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      RouteTopk::Problem::fields(v, p.route);
      v("hidden", p.hidden, "length of the router's sums");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the router's weights and bias");
      v("gate_bias", p.gate_bias, "adds gate_bias[experts] to the logits");
    }
  };
  struct Args : RouteTopk::Args {
    Tensor x, w, gate_bias;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("x", Role::kIn, p.x, {p.route.tokens, p.hidden}, true, Rows::kMayBeStrided), &Args::x);
    v(slot("w", Role::kIn, p.w, {p.route.experts, p.hidden}), &Args::w);
    v(slot("gate_bias", Role::kIn, p.w, {p.route.experts}, p.gate_bias), &Args::gate_bias);
    RouteTopk::slots(p.route, [&](SlotSpec spec, Tensor RouteTopk::Args::*member) {
      if (member == &RouteTopk::Args::logits) spec.role = Role::kOut;
      v(spec, static_cast<Tensor Args::*>(member));
    });
  }
  // The first half. The second half is Problem::route, and Args extends its Args.
  static RouterGemm::Problem gate(const Problem& p) {
    return {.tokens = p.route.tokens,
            .experts = p.route.experts,
            .hidden = p.hidden,
            .x = p.x,
            .w = p.w,
            .y = p.route.logits,
            .bias = p.gate_bias};
  }
  static RouterGemm::Args gate(const Args& a) {
    return {.x = a.x, .w = a.w, .bias = a.gate_bias, .y = a.logits};
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return RouterGemm::flops(gate(p)); }
  static Problem at_tokens(Problem p, int64_t n) { return p.route.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.route.tokens; }
};

Expectations reference(const RouterRoute::Problem& problem, const RouterRoute::Args& args);
Expectations reference_given(const RouterRoute::Problem& problem, const RouterRoute::Args& args);

}  // namespace sluice
