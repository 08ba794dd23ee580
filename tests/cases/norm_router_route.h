#pragma once
#include "cases/rms_norm.h"
#include "cases/router_route.h"
#include "ops/fused/norm_router_route.h"

namespace sluice::test {

template <>
struct Suite<NormRouterRoute> {
  using Problem = NormRouterRoute::Problem;
  static std::vector<Case<NormRouterRoute>> cases() {
    std::vector<Case<NormRouterRoute>> out;
    // RouterRoute's cases, each after a norm.
    for (const Case<RouterRoute>& c : Suite<RouterRoute>::cases())
      out.push_back({{.router = c.problem}, c.why, c.fill, c.spread});
    const auto gpt = [](int64_t tokens, int64_t experts) {
      Problem p;
      p.router.route = {.tokens = tokens, .experts = experts, .top_k = 4, .logits = DType::kF32};
      p.router.gate_bias = true;
      return p;
    };
    for (const int64_t experts : {32, 128}) {
      for (const int64_t tokens : {1, 8}) out.push_back({gpt(tokens, experts), "gpt-oss"});
      for (const int64_t tokens : {17, 63, 64}) {
        Problem many = gpt(tokens, experts);
        many.router.hidden = 520;
        out.push_back({many, "several tiles of tokens"});
      }
      Problem narrow = gpt(5, experts), small = gpt(3, experts), f32 = gpt(4, experts);
      narrow.router.hidden = 136, small.router.hidden = 1000, small.eps = 1e-6, f32.norm_w = DType::kF32;
      out.push_back({narrow, "narrow rows", Fill::kNormal, Spread::kStridedRows});
      out.push_back({small, "a width between the narrowest and the widest"});
      out.push_back({f32, "norm weight in f32"});
      out.push_back({gpt(9, experts), "NaN stays in its row", Fill::kSomeNan});
      out.push_back({gpt(9, experts), "an infinity", Fill::kInfinite});
      out.push_back({gpt(3, experts), "subnormal numbers", Fill::kTiny});
    }
    add_unaligned(&out);
    return out;
  }
  static void fill(const Problem& p, Fill fill, HostArgs<NormRouterRoute>& host, Random& random) {
    HostArgs<RouterRoute> beside(p.router, Spread::kContiguous);
    Suite<RouterRoute>::fill(p.router, fill, beside, random);
    copy_inputs(beside, host);
    fill_floats(host.args().norm_weight, Fill::kNormal, random);
  }
  // Two thirds of the problems are gpt-oss's or Qwen3's except for their sizes.
  static Problem random(Random& r) {
    Problem p{.router = Suite<RouterRoute>::random(r)};
    if (r.integer(0, 2) > 0) {
      p.router.route = {.tokens = coin(r) ? r.integer(0, 8) : r.integer(9, 70),
                        .experts = coin(r) ? 32 : 128,
                        .top_k = r.integer(1, 4),
                        .logits = any_float(r)};
      if (p.router.route.experts == 128 && coin(r)) {
        p.router.route.method = RoutingMethod::kRenormalizeNaive;
        p.router.route.top_k = r.integer(1, 8);
      }
      p.router.hidden = 8 * r.integer(16, coin(r) ? 384 : 64);
      p.router.x = p.router.w = DType::kBF16;
    }
    p.eps = coin(r) ? 1e-5 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0)));
    p.norm_w = r.integer(0, 3) ? DType::kBF16 : DType::kF32;
    p.x_unaligned = coin(r);
    return p;
  }
};

}  // namespace sluice::test
