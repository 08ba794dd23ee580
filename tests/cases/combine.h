#pragma once
#include "harness/cases.h"
#include "ops/combine.h"

namespace sluice::test {

template <>
struct Suite<Combine> {
  static std::vector<Case<Combine>> cases() {
    constexpr DType kF = DType::kF32;
    const Combine::Problem plain{.tokens = 5, .slots = 4, .rows = 20, .hidden = 75, .experts = 9};
    auto full = plain;
    full.bias = full.shared = full.residual = true, full.scale = -2.5;
    auto f32 = full;
    f32.g = f32.b = f32.y = kF;
    auto unweighted = full;
    unweighted.weighted = unweighted.bias = false;
    std::vector<Case<Combine>> out = {
        {{.tokens = 1, .slots = 4, .rows = 4, .hidden = 2880, .experts = 128, .bias = true, .residual = true},
         "gpt-oss-120b decode"},
        {{.tokens = 3, .slots = 8, .rows = 40, .hidden = 1100, .g = kF, .shared = true, .scale = 2.5},
         "DeepSeek V3, padding rows between aligned groups"},
        {{.tokens = 2, .slots = 22, .rows = 44, .hidden = 1024, .scale = 5},
         "Nemotron-3 Super's latent experts"},
        {{.tokens = 4, .slots = 1, .rows = 4, .hidden = 600, .weighted = false, .shared = true},
         "Llama 4: router weights are applied before the expert"},
        {{.tokens = 70, .slots = 3, .rows = 250, .hidden = 513},
         "more than one chunk, one column more than a block"},
        {{.tokens = 0, .slots = 4, .rows = 0, .hidden = 64}, "no tokens"},
        {{.tokens = 3, .slots = 2, .rows = 0, .hidden = 64, .residual = true}, "no rows: y is the residual"},
        {{.tokens = 3, .slots = 64, .rows = 7, .hidden = 1}, "the largest slot count, one column"},
        {{.tokens = 2, .slots = 2, .rows = 4, .hidden = 40, .scale = 0}, "a scale of zero"},
        {plain, "strided rows", Fill::kNormal, Spread::kStridedRows},
        {full, "every optional input, strided rows", Fill::kNormal, Spread::kStridedRows},
        {f32, "every optional input, in f32"},
    };
    constexpr Fill kFills[] = {Fill::kEmpty, Fill::kSkewed, Fill::kSomeNan,   Fill::kInfinite,
                               Fill::kTiny,  Fill::kHuge,   Fill::kZerosMixed};
    for (Fill fill : kFills)
      for (const auto& p : {plain, full, f32, unweighted}) out.push_back({p, "special values", fill});
    return out;
  }
  static void fill(const Combine::Problem& p, Fill fill, HostArgs<Combine>& host, Random& random) {
    const auto& a = host.args();
    for (const Tensor& t : {a.g, a.bias, a.shared, a.residual, a.weights}) fill_floats(t, fill, random);
    // Slots without a row have a NaN weight, which must not reach y.
    set_each(a.position, [&](int64_t t, int64_t k) -> int64_t {
      const bool none = fill == Fill::kEmpty || random.integer(0, 7) == 0;
      if (none && a.weights.present()) a.weights.row<float>(t)[k] = std::numeric_limits<float>::quiet_NaN();
      if (none) return one_of(random, {-1, p.rows, -900, 1 << 30});
      return fill == Fill::kSkewed || p.rows == 0 ? 0 : random.integer(0, p.rows - 1);
    });
    if (a.ids.present())
      set_each(a.ids, [&](int64_t, int64_t) {
        return random.integer(0, 5) ? random.integer(0, p.experts - 1)
                                    : one_of(random, {-1, p.experts, 1 << 20});
      });
    if (p.rows == 0) set_each(a.position, [](int64_t, int64_t) { return 0; });
  }
  static Combine::Problem random(Random& r) {
    Combine::Problem p{.tokens = r.integer(0, 12), .slots = r.integer(1, 12), .rows = r.integer(0, 60)};
    p.hidden = one_of(r, {1, 16, 33, 64, r.integer(1, 700)});
    p.experts = r.integer(1, 10);
    p.g = any_float(r), p.b = any_float(r), p.y = any_float(r);
    p.weighted = coin(r), p.bias = coin(r), p.shared = coin(r), p.residual = coin(r);
    p.scale = coin(r) ? 1 : 2.5, p.settled = coin(r);
    return p;
  }
};

}  // namespace sluice::test
