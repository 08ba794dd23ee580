#pragma once
#include "cases/route_topk.h"
#include "ops/fused/route_group.h"

namespace sluice::test {

// RouteTopk's cases with every kind of grouping, and cases that only grouping can get wrong.
template <>
struct Suite<RouteGroup> {
  using M = RoutingMethod;
  using Problem = RouteGroup::Problem;

  static std::vector<Case<RouteGroup>> cases() {
    constexpr std::pair<int64_t, int64_t> kHow[] = {{1, 0}, {8, 0}, {1, 64}, {16, 16}, {128, 128}, {4, 8}};
    std::vector<Case<RouteGroup>> out;
    for (const auto& c : Suite<RouteTopk>::cases()) {
      const auto [align, tile] = kHow[out.size() % std::size(kHow)];
      Problem p{.route = c.problem, .row_align = align, .tile_rows = tile};
      if (p.route.scope == ExpertScope::kMap) p.mapped_experts = 70;  // the map also has larger ids
      if (RouteGroup::experts(p) > 0) out.push_back({p, c.why, c.fill, c.spread});
    }
    const RouteTopk::Problem v3{.tokens = 64,
                                .experts = 256,
                                .top_k = 8,
                                .method = M::kDeepSeekV3,
                                .bias = true,
                                .groups = 8,
                                .topk_groups = 4,
                                .scale = 2.5};
    const RouteTopk::Problem oss{.tokens = 64, .experts = 128, .top_k = 4, .logits = DType::kBF16};
    const auto add = [&](RouteTopk::Problem route, int64_t tokens, const char* why,
                         Fill fill = Fill::kNormal) {
      route.tokens = tokens;
      out.push_back({{.route = route, .row_align = 8, .tile_rows = 16}, why, fill});
    };
    add(v3, 64, "DeepSeek V3, a step of 64 tokens");
    add(oss, 64, "gpt-oss-120b, a step of 64 tokens");
    add(oss, 64, "all tokens choose the same experts", Fill::kAllEqual);
    for (int64_t tokens : {0, 2, 15, 17, 129, 1025}) add(oss, tokens, "token counts around the block sizes");
    for (int64_t tokens : {257, 1500}) add(v3, tokens, "token counts around the block sizes, expert groups");
    auto ours = v3, mapped = v3, given = oss, padded = v3;
    ours.scope = ExpertScope::kRange, ours.expert_begin = 64, ours.expert_count = 32, ours.shared_slots = 1;
    mapped.scope = ExpertScope::kMap, mapped.capture = true;
    given.input = RoutingInput::kPrecomputed, given.logits = DType::kF32;
    padded.padded = true, padded.capture = true;
    add(ours, 300, "one rank's experts, with a shared slot");
    add(given, 700, "precomputed ids, one expert twice");
    add(padded, 150, "padding in the middle of a block");
    add(padded, 150, "only padding tokens", Fill::kEmpty);
    mapped.tokens = 513;
    out.push_back(
        {{.route = mapped, .tile_rows = 32, .mapped_experts = 90}, "several ids map to one expert"});
    // Groups without alignment, which the kernels of known layers require.
    for (RouteTopk::Problem route : Suite<RouteTopk>::some_models()) {
      int64_t slots = 0;
      for (int64_t tokens : {1, 2, 7, 32, 64, 100, 300, 2500}) {
        slots = slots % 3 + 1;
        for (int64_t tile : {0, 16}) {
          route.tokens = tokens, route.shared_slots = slots;
          out.push_back({{.route = route, .tile_rows = tile}, "a known layer with shared slots"});
        }
      }
    }
    return out;
  }

  static void fill(const Problem& p, Fill fill, HostArgs<RouteGroup>& host, Random& random) {
    Suite<RouteTopk>::fill_args(p.route, fill, host.args(), random);
  }

  static Problem random(Random& r) {
    Problem p{.route = Suite<RouteTopk>::random(r),
              .row_align = one_of(r, {1, 1, 1, 2, 16, 128}),
              .tile_rows = one_of(r, {0, 8, 16, 64, 256})};
    if (r.integer(0, 5) == 0) p.route.tokens = r.integer(25, 400);
    if (p.route.scope == ExpertScope::kMap) p.mapped_experts = r.integer(1, 100);
    return p;
  }
};

}  // namespace sluice::test
