#pragma once
#include "harness/cases.h"
#include "ops/rms_norm.h"

namespace sluice::test {

template <>
struct Suite<RmsNorm> {
  static std::vector<Case<RmsNorm>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    return {
        {{.tokens = 1, .hidden = 2880}, "gpt-oss decode"},
        {{.tokens = 9, .hidden = 2880, .residual = true}, "adds the residual stream"},
        {{.tokens = 4, .hidden = 2048, .x = kF, .w = kF, .y = kF, .residual = true}, "all in f32"},
        {{.tokens = 3, .hidden = 128, .eps = 1e-6, .heads = 32},
         "queries of Qwen3-MoE, strided rows",
         Fill::kNormal,
         apart},
        {{.tokens = 1, .hidden = 128, .eps = 1e-6, .heads = 4}, "keys of one token"},
        {{.tokens = 5, .hidden = 64, .x = kF, .w = kF, .y = kF, .heads = 3},
         "heads in f32",
         Fill::kNormal,
         apart},
        {{.tokens = 4, .hidden = 21, .y = kF, .residual = true, .heads = 11},
         "heads of odd width, adds the residual stream",
         Fill::kNormal,
         apart},
        {{.tokens = 6, .hidden = 40, .heads = 5}, "NaN stays in its head", Fill::kSomeNan},
        {{.tokens = 6, .hidden = 40, .x = kF, .y = kF, .heads = 5}, "an infinity in a head", Fill::kInfinite},
        {{.tokens = 2, .hidden = 520, .heads = 9}, "heads wider than a warp holds"},
        {{.tokens = 2, .hidden = 1, .heads = 70}, "heads of one element"},
        {{.tokens = 0, .hidden = 50, .heads = 3}, "heads, no tokens"},
        {{.tokens = 1, .hidden = 4096, .heads = 16}, "the widest row that is split into heads"},
        {{.tokens = 67, .hidden = 137, .y = kF, .residual = true},
         "sizes that no tile divides",
         Fill::kNormal,
         apart},
        {{.tokens = 5, .hidden = 1, .x = kF, .residual = true}, "one column"},
        {{.tokens = 6, .hidden = 50, .residual = true}, "NaN stays in its row", Fill::kSomeNan},
        {{.tokens = 6, .hidden = 50, .x = kF, .y = kF}, "an infinity", Fill::kInfinite},
        {{.tokens = 6, .hidden = 50, .x = kF, .y = kF, .residual = true}, "subnormal numbers", Fill::kTiny},
        {{.tokens = 6, .hidden = 50, .eps = 1e-30, .x = kF, .y = kF},
         "a tiny eps on rows of zeros",
         Fill::kZerosMixed},
        {{.tokens = 6, .hidden = 50, .x = kF, .y = kF}, "large numbers", Fill::kHuge},
        {{.tokens = 0, .hidden = 50, .residual = true}, "no tokens"},
        {{.tokens = 1, .hidden = 65536, .residual = true}, "the widest row"},
    };
  }
  static void fill(const RmsNorm::Problem&, Fill fill, HostArgs<RmsNorm>& host, Random& random) {
    const bool huge = fill == Fill::kHuge;  // as large as possible without overflow of the squares
    const Fill stream = huge ? Fill::kNormal : fill;
    fill_floats(host.args().x, stream, random, huge ? 0x1p50 : 1);
    fill_floats(host.args().residual, stream, random, huge ? 0x1p50 : 3);
    fill_floats(host.args().weight, Fill::kNormal, random);
  }
  static RmsNorm::Problem random(Random& r) {
    return {.tokens = r.integer(0, 20),
            .hidden = r.integer(0, 300),
            .eps = coin(r) ? 1e-5 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0))),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r),
            .residual = coin(r),
            .heads = coin(r) ? 1 : r.integer(0, 12)};
  }
};

}  // namespace sluice::test
