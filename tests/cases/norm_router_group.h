#pragma once
#include "cases/norm_router_route.h"
#include "cases/route_group.h"
#include "ops/norm_router_group.h"

namespace sluice::test {

template <>
struct Suite<NormRouterGroup> {
  using Problem = NormRouterGroup::Problem;
  static std::vector<Case<NormRouterGroup>> cases() {
    // Those of the norm and the router, most of them grouped as experts want their rows.
    constexpr std::pair<int64_t, int64_t> kHow[] = {{1, 0}, {1, 0}, {8, 0}, {1, 0}, {4, 16}, {1, 64}};
    std::vector<Case<NormRouterGroup>> out;
    for (const Case<NormRouterRoute>& c : Suite<NormRouterRoute>::cases()) {
      const auto [align, tile] = kHow[out.size() % std::size(kHow)];
      out.push_back({of(c.problem, align, tile), c.why, c.fill, c.spread});
    }
    for (const int64_t experts : {32, 128}) {
      NormRouterRoute::Problem oss;
      oss.router.route = {.tokens = 64, .experts = experts, .top_k = 4, .logits = DType::kF32};
      oss.router.gate_bias = true;
      const auto add = [&](int64_t tokens, const char* why, Fill fill = Fill::kNormal,
                           Spread spread = Spread::kContiguous) {
        oss.router.route.tokens = tokens;
        out.push_back({of(oss), why, fill, spread});
      };
      if (experts == 32) add(64, "gpt-oss-20b, a step of 64 tokens");
      oss.router.hidden = 136;
      for (const int64_t tokens : {1, 2, 9, 16, 31, 33, 65, 96, 127, 128, 129, 300})
        add(tokens, "around the sizes of masks and clusters");
      for (const int64_t tokens : {40, 128}) {
        add(tokens, "everybody chooses the same experts", Fill::kAllEqual);
        add(tokens, "rows apart", Fill::kNormal, Spread::kStridedRows);
        add(tokens, "NaN in some rows", Fill::kSomeNan);
      }
      for (const int64_t top_k : {1, 2, 3}) {
        oss.router.route.top_k = top_k;
        add(50, "fewer slots than a token's words hold");
      }
    }
    return out;
  }
  static void fill(const Problem& p, Fill fill, HostArgs<NormRouterGroup>& host, Random& random) {
    HostArgs<NormRouterRoute> beside(p.front, Spread::kContiguous);
    Suite<NormRouterRoute>::fill(p.front, fill, beside, random);
    copy_inputs(beside, host);
  }
  static Problem random(Random& r) {
    Problem p =
        of(Suite<NormRouterRoute>::random(r), one_of(r, {1, 1, 1, 2, 128}), one_of(r, {0, 0, 0, 8, 64}));
    if (r.integer(0, 3) == 0) p.front.router.route.tokens = r.integer(60, 140);
    if (p.mapped_experts > 0) p.mapped_experts = r.integer(1, 100);
    return p;
  }

 private:
  static Problem of(const NormRouterRoute::Problem& front, int64_t align = 1, int64_t tile = 0) {
    const bool map = front.router.route.scope == ExpertScope::kMap;
    return {.front = front, .row_align = align, .tile_rows = tile, .mapped_experts = map ? 70 : 0};
  }
};

}  // namespace sluice::test
