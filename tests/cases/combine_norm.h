#pragma once
#include "cases/combine.h"
#include "ops/fused/combine_norm.h"

namespace sluice::test {

template <>
struct Suite<CombineNorm> {
  static std::vector<Case<CombineNorm>> cases() {
    using P = CombineNorm::Problem;
    constexpr DType kF = DType::kF32;
    const P gpt{.combine = {.tokens = 1, .slots = 4, .rows = 4, .hidden = 2880, .residual = true}};
    const auto of = [](P p, int64_t tokens) { return CombineNorm::at_tokens(p, tokens); };
    P full{.combine = {.tokens = 5,
                       .slots = 4,
                       .rows = 20,
                       .hidden = 72,
                       .experts = 9,
                       .bias = true,
                       .shared = true,
                       .residual = true,
                       .scale = -2.5},
           .norm_w = kF};
    P f32 = full;
    f32.combine.g = f32.combine.b = f32.combine.y = kF, f32.norm_w = DType::kBF16;
    P odd = full;
    odd.combine.hidden = 75;
    std::vector<Case<CombineNorm>> out = {
        {gpt, "gpt-oss decode"},
        {of(gpt, 64), "gpt-oss, 64 sequences"},
        {of(gpt, 9), "strided rows", Fill::kNormal, Spread::kStridedRows},
        {{.combine =
              {.tokens = 3, .slots = 8, .rows = 40, .hidden = 7168, .g = kF, .shared = true, .scale = 2.5},
          .eps = 1e-6},
         "DeepSeek V3, padding rows between aligned groups"},
        {{.combine = {.tokens = 2, .slots = 22, .rows = 44, .hidden = 8192}},
         "the widest row that registers hold"},
        {{.combine = {.tokens = 2, .slots = 2, .rows = 4, .hidden = 8200}},
         "a row that registers cannot hold"},
        {{.combine = {.tokens = 3, .slots = 64, .rows = 7, .hidden = 8}},
         "the largest slot count, eight columns"},
        {{.combine = {.tokens = 3, .slots = 2, .rows = 0, .hidden = 64, .residual = true}},
         "no rows: y is the residual"},
        {{.combine = {.tokens = 3, .slots = 2, .rows = 0, .hidden = 64}}, "no rows and no residual"},
        {of(full, 0), "no tokens"},
        {full, "every optional input, strided rows", Fill::kNormal, Spread::kStridedRows},
        {odd, "sizes that no tile divides"},
        {f32, "all in f32"},
    };
    constexpr Fill kFills[] = {Fill::kEmpty, Fill::kSkewed, Fill::kSomeNan,   Fill::kInfinite,
                               Fill::kTiny,  Fill::kHuge,   Fill::kZerosMixed};
    for (Fill fill : kFills)
      for (const auto& p : {full, f32}) out.push_back({p, "special values", fill});
    add_unaligned(&out);
    return out;
  }
  static void fill(const CombineNorm::Problem& p, Fill fill, HostArgs<CombineNorm>& host, Random& random) {
    // Fills tensors as Combine's suite does.
    HostArgs<Combine> sum(p.combine, Spread::kContiguous);
    Suite<Combine>::fill(p.combine, fill, sum, random);
    copy_inputs(sum, host);
    fill_floats(host.args().norm_weight, Fill::kNormal, random);
  }
  // Half of the problems have row sizes that are multiples of 16 bytes.
  static CombineNorm::Problem random(Random& r) {
    CombineNorm::Problem p{.combine = Suite<Combine>::random(r)};
    if (coin(r)) p.combine.hidden = 8 * r.integer(1, 90);
    p.eps = coin(r) ? 1e-5 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0)));
    p.norm_w = any_float(r);
    p.x_unaligned = coin(r);
    return p;
  }
};

}  // namespace sluice::test
