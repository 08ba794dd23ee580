#pragma once
#include "ops/norm_router_route.h"
#include "ops/route_group.h"

namespace sluice {

// RmsNorm, RouterGemm and RouteGroup in turn, as one operation: from the residual stream to rows that are grouped by expert.
//
//   normed, logits, ids, weights, ...      what ops/norm_router_route.h says
//   row_count, row_begin, order, position  what ops/group_rows.h says of these ids, grouped as ops/route_group.h has it
//
// Shapes     as the contracts have them.
// Bytes      those of NormRouterRoute, and each output of GroupRows once; ids are not read back.
// Errors     make_plan: kInvalidArgument if a bound of a contract is broken. run: never fails on data.
// Exactness  as NormRouterRoute; groups are equal to those of the ids.
// Source     the contracts.
struct NormRouterGroup {
  static constexpr std::string_view kName = "norm_router_group";
  static constexpr std::string_view kSummary =
      "norms each token, scores every expert for it, chooses, and sorts the (token, slot) pairs by expert";
  struct Problem {
    NormRouterRoute::Problem front;
    int64_t row_align = 1, tile_rows = 0, mapped_experts = 0;  // as RouteGroup::Problem has them
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      NormRouterRoute::Problem::fields(v, p.front);
      v("row_align", p.row_align, "each expert's rows start at a multiple of this");
      v("tile_rows", p.tile_rows, "rows of a tile in the list of tiles; 0: no list");
      v("mapped_experts", p.mapped_experts, "scope=map: experts to group by");
    }
  };
  struct Args : NormRouterRoute::Args, GroupTensors {};
  // The parts: Problem::front but for its choice, and the choice with its groups; or Problem::front, and groups of its ids.
  static RouteGroup::Problem route(const Problem& p) {
    return {.route = p.front.router.route,
            .row_align = p.row_align,
            .tile_rows = p.tile_rows,
            .mapped_experts = p.mapped_experts};
  }
  static RouteGroup::Args route(const Args& a) { return {a, a}; }
  static GroupRows::Problem group(const Problem& p) { return RouteGroup::group(route(p)); }
  static GroupRows::Args group(const Args& a) { return {a, a.ids}; }
  template <class V>
  static void slots(const Problem& p, V v) {
    NormRouterRoute::slots(p.front, v);
    GroupRows::slots_written(group(p), v);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return NormRouterRoute::flops(p.front); }
  static Problem at_tokens(Problem p, int64_t n) {
    return p.front = NormRouterRoute::at_tokens(p.front, n), p;
  }
  static int64_t tokens_of(const Problem& p) { return NormRouterRoute::tokens_of(p.front); }
};

Expectations reference(const NormRouterGroup::Problem& problem, const NormRouterGroup::Args& args);
Expectations reference_given(const NormRouterGroup::Problem& problem, const NormRouterGroup::Args& args);

}  // namespace sluice
