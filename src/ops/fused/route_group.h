#pragma once
#include "ops/group_rows.h"
#include "ops/route_topk.h"

namespace sluice {

// RouteTopk (ops/route_topk.h) followed by GroupRows (ops/group_rows.h) over its ids, shared slots included, fused: from
// logits to all inputs of the expert GEMMs. The comments of both headers apply unchanged and are not repeated here.
//
// Grouped by  ids below experts(problem): experts + shared_slots under scope kAll; expert_count + shared_slots under
//             kRange; mapped_experts under kMap, because only the map knows how many copies of experts there are. Larger
//             ids are empty slots.
// Shapes      as in route_topk.h and group_rows.h, with slots = top_k + shared_slots columns of ids.
// Bytes       reads the logits once and writes every output once; ids are not read back.
// Errors      make_plan: kInvalidArgument if the problem violates a limit of either header (for example zero experts to
//             group by). run: never fails on data.
// Exactness   weights as in RouteTopk; all other outputs equal to the reference.
// Source      the fusion is original; SGLang and vLLM use two to five launches for the same work.
struct RouteGroup {
  static constexpr std::string_view kName = "route_group";
  static constexpr std::string_view kSummary =
      "chooses experts for each token and sorts the (token, slot) pairs by expert";
  struct Problem {
    RouteTopk::Problem route;
    int64_t row_align = 1, tile_rows = 0, mapped_experts = 0;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      RouteTopk::Problem::fields(v, p.route);
      v("row_align", p.row_align, "each expert's rows start at a multiple of this");
      v("tile_rows", p.tile_rows, "rows of a tile in the list of tiles; 0: no list");
      v("mapped_experts", p.mapped_experts, "scope=map: experts to group by");
    }
  };
  struct Args : RouteTopk::Args, GroupTensors {};
  static int64_t experts(const Problem& p) {
    if (p.route.scope == ExpertScope::kMap) return p.mapped_experts;
    const bool part = p.route.scope == ExpertScope::kRange;
    return (part ? p.route.expert_count : p.route.experts) + p.route.shared_slots;
  }
  // The second half: GroupRows on the ids of the first half.
  static GroupRows::Problem group(const Problem& p) {
    return {.tokens = p.route.tokens,
            .slots = p.route.top_k + p.route.shared_slots,
            .experts = experts(p),
            .row_align = p.row_align,
            .tile_rows = p.tile_rows};
  }
  static GroupRows::Args group(const Args& a) { return {a, a.ids}; }
  template <class V>
  static void slots(const Problem& p, V v) {
    RouteTopk::slots(p.route, v);
    GroupRows::slots_written(group(p), v);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.route.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.route.tokens; }
};

Expectations reference(const RouteGroup::Problem& problem, const RouteGroup::Args& args);

}  // namespace sluice
