#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "cases/expert_rows.h"
#include "harness/cases.h"
#include "ops/expert_lora.h"

namespace sluice::test {

template <>
struct Suite<ExpertLora> {
  using P = ExpertLora::Problem;
  static constexpr DType kF = DType::kF32, kB = DType::kBF16;

  // gpt-oss's first product with adapters, at a given size.
  static P gate_up(int64_t tokens, int64_t experts, int64_t features, int64_t width) {
    return {.rows = tokens * 4,
            .tokens = tokens,
            .slots = 4,
            .experts = experts,
            .features = features,
            .width = width,
            .rank = 16,
            .adapters = 3,
            .act = Activation::kSwiGluClamped,
            .alpha = 1.702,
            .beta = 1,
            .limit = 7,
            .gathers = true,
            .bias = true};
  }
  template <class F>
  static P with(P p, F change) {
    change(p);
    return p;
  }

  static P down(int64_t tokens, int64_t experts, int64_t features, int64_t width) {
    return with(gate_up(tokens, experts, features, width),
                [](P& p) { p.act = Activation::kIdentity, p.gathers = false; });
  }

  static std::vector<Case<ExpertLora>> cases() {
    std::vector<Case<ExpertLora>> out = {
        {gate_up(1, 32, 720, 1440), "decode of one token: each row has its own expert"},
        {down(1, 32, 1440, 720), "the same for down"},
        {gate_up(9, 4, 96, 320), "experts with several adapters each"},
        {down(40, 3, 200, 128), "more than one tile of rows"},
        {with(gate_up(12, 5, 96, 256), [](P& p) { p.split = true, p.gate_order = GateOrder::kGateFirst; }),
         "gate and up with their own A"},
        {with(gate_up(12, 5, 40, 136),
              [](P& p) { p.split = true, p.gate_order = GateOrder::kUpFirst, p.rank = 8; }),
         "ups first, rank 8"},
        {with(gate_up(30, 4, 128, 256), [](P& p) { p.rank = 64, p.split = true; }), "rank 64"},
        {with(down(20, 4, 130, 136), [](P& p) { p.rank = 24, p.adapters = 40; }),
         "nearly one adapter per row; tails"},
        {with(down(5, 3, 17, 9), [](P& p) { p.rank = 3; }), "sizes that nothing divides"},
        {with(down(4, 3, 48, 64), [](P& p) { p.w = kF, p.x = kF, p.y = kF; }), "all in f32"},
        {with(gate_up(6, 4, 33, 160), [](P& p) { p.z = kB, p.bias_type = kF; }), "z in bf16, bias in f32"},
        {with(gate_up(4, 3, 17, 128), [](P& p) { p.per_expert = true; }), "activation parameters per expert"},
        {with(down(16, 4, 64, 128), [](P& p) { p.act = Activation::kRelu2, p.gathers = true; }),
         "Nemotron: no gate"},
        {with(gate_up(16, 8, 64, 128), [](P& p) { p.rows += 29; }), "gaps between experts"},
        {gate_up(0, 4, 32, 64), "no tokens"},
        {{.rows = 1, .tokens = 1, .slots = 1, .experts = 1, .features = 1, .width = 1, .rank = 1},
         "the smallest sizes"},
        {gate_up(7, 4, 48, 128), "strided rows", Fill::kNormal, Spread::kStridedRows},
        {gate_up(7, 4, 48, 128), "no token has an adapter", Fill::kEmpty},
        {gate_up(33, 4, 48, 128), "every row in one expert, with the last adapter", Fill::kSkewed},
        {gate_up(40, 4, 48, 256), "NaN", Fill::kSomeNan},
        {with(down(9, 4, 48, 128), [](P& p) { p.bias = false; }), "infinities", Fill::kInfinite},
        {with(down(9, 4, 48, 64), [](P& p) { p.w = p.x = p.y = kF, p.bias = false; }), "subnormal numbers",
         Fill::kTiny},
        {with(down(9, 4, 48, 64), [](P& p) { p.w = p.x = p.y = kF, p.bias = false; }),
         "near the largest float", Fill::kHuge},
        {down(9, 4, 48, 128), "zeros of both signs", Fill::kZerosMixed},
    };
    for (size_t i = 0, count = out.size(); i < count; ++i) {  // z of a gated product, in the other layouts
      if (!is_gated(out[i].problem.act)) continue;
      for (WeightLayout layout : {WeightLayout::kRowMajor, WeightLayout::kFragments}) {
        out.push_back(out[i]);
        out.back().problem.layout = layout;
      }
    }
    for (auto& test : out) test.problem.x_unaligned = test.spread == Spread::kStridedRows;
    return out;
  }

  static void fill(const P& p, Fill fill, HostArgs<ExpertLora>& host, Random& random) {
    const auto& a = host.args();
    place_rows(a, p.experts, p.rows, std::min(p.rows, p.tokens * p.slots), fill, random);
    for (const Tensor& t : {a.x, a.a, a.b, a.z, a.bias}) fill_floats(t, fill, random);
    fill_floats(a.scale, Fill::kNormal, random);
    if (a.act_params.present())
      set_each(a.act_params,
               [&](int64_t, int64_t c) { return c == 2 ? 1 + 6 * random.uniform() : random.uniform(); });
    set_each(a.adapter, [&](int64_t, int64_t) -> int64_t {
      if (fill == Fill::kEmpty) return one_of(random, {-1, p.adapters, -5});
      return fill == Fill::kSkewed ? p.adapters - 1 : random.integer(-1, p.adapters);
    });
  }

  static P random(Random& r) {
    // Half of the problems have rows of whole 16-byte chunks, which tensor cores need.
    const bool chunks = coin(r);
    const int64_t tokens = r.integer(0, 3) > 0 ? r.integer(0, 8) : r.integer(0, 40), slots = r.integer(1, 6);
    static constexpr Activation kActs[] = {Activation::kIdentity, Activation::kSwiGlu,
                                           Activation::kSwiGluClamped, Activation::kGelu,
                                           Activation::kGeGluTanh};
    static constexpr WeightLayout kLayouts[] = {WeightLayout::kPanels16, WeightLayout::kRowMajor,
                                                WeightLayout::kFragments};
    static constexpr GateOrder kOrders[] = {GateOrder::kInterleaved, GateOrder::kGateFirst,
                                            GateOrder::kUpFirst};
    const Activation act = one_of(r, std::span<const Activation>(kActs));
    return {.rows = tokens * slots + r.integer(0, 3),
            .tokens = tokens,
            .slots = slots,
            .experts = r.integer(1, 9),
            .features = r.integer(1, 100),
            .width = chunks ? 8 * r.integer(16, 40) : r.integer(1, 150),
            .rank = chunks ? 8 * r.integer(1, 9) : r.integer(1, 40),
            .adapters = r.integer(1, coin(r) ? 4 : 40),
            .x = coin(r) ? kB : any_float(r),
            .z = any_float(r),
            .w = coin(r) ? kB : any_float(r),
            .bias_type = any_float(r),
            .y = any_float(r),
            .layout = one_of(r, std::span<const WeightLayout>(kLayouts)),
            .gate_order = one_of(r, std::span<const GateOrder>(kOrders)),
            .act = act,
            .alpha = 1.702,
            .beta = 1,
            .limit = 3,
            .gathers = coin(r),
            .split = is_gated(act) && coin(r),
            .bias = coin(r),
            .settled = coin(r)};
  }
};

}  // namespace sluice::test
