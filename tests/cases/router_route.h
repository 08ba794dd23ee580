#pragma once
#include "cases/route_topk.h"
#include "cases/router_gemm.h"
#include "ops/fused/router_route.h"

namespace sluice::test {

template <>
struct Suite<RouterRoute> {
  using M = RoutingMethod;
  using Problem = RouterRoute::Problem;

  static std::vector<Case<RouterRoute>> cases() {
    constexpr DType kB = DType::kBF16, kF = DType::kF32;
    const Problem oss{
        .route = {.tokens = 1, .experts = 128, .top_k = 4, .logits = kB}, .hidden = 2880, .gate_bias = true};
    const Problem flash{
        .route =
            {.tokens = 3, .experts = 256, .top_k = 6, .method = M::kSqrtSoftplus, .bias = true, .scale = 1.5},
        .hidden = 4096};
    const Problem grouped{.route = {.tokens = 9,
                                    .experts = 96,
                                    .top_k = 8,
                                    .method = M::kDeepSeekV3,
                                    .bias = true,
                                    .groups = 8,
                                    .topk_groups = 4,
                                    .scale = 2.5},
                          .hidden = 256};
    auto small = oss, pro = flash, batch = oss, none = oss, ragged = oss, floats = grouped, around = grouped;
    small.route.tokens = 64, small.route.experts = 32;
    pro.route.tokens = 2, pro.route.experts = 384, pro.hidden = 7168;
    batch.route.tokens = 33;
    none.route.tokens = 0;
    ragged.route.tokens = 19, ragged.route.experts = 37, ragged.hidden = 203;
    floats.x = floats.w = kF;
    around.route.shared_slots = 1, around.route.scale_here = false, around.route.padded = true;
    around.route.capture = true, around.route.scope = ExpertScope::kMap;
    Problem hash{.route = {.tokens = 9, .experts = 24, .top_k = 3, .method = M::kHash, .vocab = 20},
                 .hidden = 64};
    Problem widest{.route = {.tokens = 2, .experts = 1024, .top_k = 32}, .hidden = 64};
    Problem least{.route = {.tokens = 17, .experts = 1, .top_k = 1}, .hidden = 1};
    // Layers of known models with shared slots, for dedicated kernels.
    auto v3 = grouped, oss20 = small, oss120 = oss, flash_slots = flash;
    v3.route.tokens = 3, v3.route.experts = 256, v3.route.shared_slots = 1, v3.hidden = 7168;
    oss20.route.tokens = 5, oss20.route.shared_slots = 8;
    oss120.route.tokens = 17, oss120.route.shared_slots = 2;
    flash_slots.route.shared_slots = 1, flash_slots.route.scale_here = false;
    auto minimax = grouped;
    minimax.route.method = M::kMiniMax2, minimax.route.groups = minimax.route.topk_groups = 1;
    minimax.w = kF;
    return {
        {oss, "gpt-oss-120b decode"},
        {small, "gpt-oss-20b, a batch"},
        {flash, "DeepSeek V4 Flash"},
        {pro, "DeepSeek V4 Pro"},
        {batch, "one token more than four tiles"},
        {v3, "DeepSeek V3 with its shared expert in a slot"},
        {oss20, "many shared slots"},
        {oss120, "shared slots, two tiles of tokens"},
        {flash_slots, "a shared slot, scale applied later"},
        {none, "no tokens"},
        {grouped, "DeepSeek V3's groups"},
        {minimax, "MiniMax: f32 weights"},
        {floats, "all in f32"},
        {hash, "ids from a table, weights from the logits"},
        {around, "expert map, padding, capture, a shared slot"},
        {widest, "the largest top_k"},
        {least, "the smallest sizes"},
        {ragged, "sizes that no tile divides"},
        {ragged, "strided rows", Fill::kNormal, Spread::kStridedRows},
        {ragged, "NaN in some rows", Fill::kSomeNan},
        {ragged, "infinities in some rows", Fill::kInfinite},
        {ragged, "all logits equal", Fill::kAllEqual},
        {grouped, "sums of subnormal numbers", Fill::kTiny},
    };
  }

  static void fill(const Problem& p, Fill fill, HostArgs<RouterRoute>& host, Random& random) {
    const RouterRoute::Args& a = host.args();
    fill_rarely(a.x, fill, random);
    fill_rarely(a.w, fill == Fill::kHuge ? Fill::kNormal : fill, random, 0.05);
    fill_floats(a.gate_bias, fill == Fill::kAllEqual ? fill : Fill::kNormal, random);
    // Fills all inputs but the logits as RouteTopk's suite does.
    HostArgs<RouteTopk> beside(p.route, Spread::kContiguous);
    Suite<RouteTopk>::fill(p.route, fill, beside, random);
    for (auto& e : beside.tensors())
      if (e.memory->role() == Role::kIn && e.name != "logits")
        std::memcpy(host.find(e.name)->view().data, e.memory->view().data,
                    static_cast<size_t>(bytes_of(e.memory->view().dtype, elements_of(e.memory->view()))));
  }

  static Problem random(Random& r) {
    const RouterGemm::Problem gate = Suite<RouterGemm>::random(r);
    return {.route = Suite<RouteTopk>::random(r),
            .hidden = gate.hidden,
            .x = gate.x,
            .w = gate.w,
            .gate_bias = gate.bias};
  }
};

}  // namespace sluice::test
