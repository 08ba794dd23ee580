#pragma once
#include "harness/cases.h"
#include "ops/lora_delta.h"

namespace sluice::test {

template <>
struct Suite<LoraDelta> {
  static std::vector<Case<LoraDelta>> cases() {
    constexpr DType kF = DType::kF32, kB = DType::kBF16;
    const LoraDelta::Problem small{.tokens = 6, .features = 45, .hidden = 70, .rank = 9, .adapters = 3};
    auto f32 = small, bf16 = small;
    f32.x = f32.w = kF;
    bf16.y = kB;
    return {
        {{.tokens = 1, .features = 128, .hidden = 2880, .rank = 16, .y = kB}, "gpt-oss-120b's gate, decode"},
        {{.tokens = 3, .features = 32, .hidden = 720, .rank = 64, .adapters = 4},
         "a large rank, mixed adapters"},
        {{.tokens = 261, .features = 3, .hidden = 5, .rank = 2, .adapters = 2},
         "more than one slab of tokens"},
        {{.tokens = 2, .features = 300, .hidden = 40, .rank = 33}, "more than one feature chunk"},
        {{.tokens = 40, .features = 130, .hidden = 200, .rank = 20, .adapters = 5}, "several chunks"},
        {{.tokens = 100, .features = 128, .hidden = 2880, .rank = 16, .adapters = 3, .y = kB},
         "gpt-oss-120b's gate, a batch"},
        {{.tokens = 71, .features = 45, .hidden = 200, .rank = 24, .adapters = 50},
         "nearly one adapter per token; tails of tokens, features and ranks"},
        {{.tokens = 37, .features = 130, .hidden = 328, .rank = 40, .adapters = 3},
         "unaligned rows of x, tiled ranks",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 40, .features = 24, .hidden = 136, .rank = 256, .adapters = 2}, "the largest tiled rank"},
        {{.tokens = 66, .features = 40, .hidden = 256, .rank = 8, .adapters = 3},
         "NaN in a batch",
         Fill::kSomeNan},
        {{.tokens = 0, .features = 8, .hidden = 8, .rank = 1}, "no tokens"},
        {{.tokens = 4, .features = 1, .hidden = 1, .rank = 1}, "the smallest sizes"},
        {small, "strided rows", Fill::kNormal, Spread::kStridedRows},
        {f32, "all in f32"},
        {bf16, "logits in bf16", Fill::kNormal, Spread::kStridedRows},
        {small, "no token has an adapter", Fill::kEmpty},
        {small, "every token has the last adapter", Fill::kSkewed},
        {small, "NaN", Fill::kSomeNan},
        {bf16, "infinities", Fill::kInfinite},
        {f32, "subnormal numbers", Fill::kTiny},
        {f32, "near the largest float", Fill::kHuge},
        {small, "zeros of both signs", Fill::kZerosMixed},
    };
  }
  static void fill(const LoraDelta::Problem& p, Fill fill, HostArgs<LoraDelta>& host, Random& random) {
    const auto& a = host.args();
    for (const Tensor& t : {a.x, a.a, a.b, a.scale, a.y}) fill_floats(t, fill, random);
    set_each(a.adapter, [&](int64_t, int64_t) -> int64_t {
      if (fill == Fill::kEmpty) return one_of(random, {-1, p.adapters, -5});
      return fill == Fill::kSkewed ? p.adapters - 1 : random.integer(-1, p.adapters);
    });
  }
  static LoraDelta::Problem random(Random& r) {
    // Half of the problems have rows of whole 16-byte chunks, which tensor cores need.
    const bool chunks = coin(r);
    return {.tokens = r.integer(0, 3) > 0 ? r.integer(0, 20) : r.integer(0, 80),
            .features = r.integer(1, 140),
            .hidden = chunks ? 8 * r.integer(1, 40) : r.integer(1, 200),
            .rank = chunks ? 8 * r.integer(1, 9) : r.integer(1, 40),
            .adapters = r.integer(1, coin(r) ? 4 : 40),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r)};
  }
};

}  // namespace sluice::test
