#pragma once
#include "harness/cases.h"
#include "ops/all_reduce_norm.h"

namespace sluice::test {

// Problems of one rank, which need no group. Problems of several ranks: backends/ranks.h.
template <>
struct Suite<AllReduceNorm> {
  static std::vector<Case<AllReduceNorm>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    std::vector<Case<AllReduceNorm>> out = {
        {{.tokens = 1}, "gpt-oss decode"},
        {{.tokens = 64}, "gpt-oss, 64 sequences"},
        {{.tokens = 300, .hidden = 2048}, "more rows than multiprocessors"},
        {{.tokens = 3, .hidden = 8192, .x = kF}, "the widest row, in f32"},
        {{.tokens = 3, .hidden = 8192, .w = kF}, "the widest row, in bf16"},
        {{.tokens = 2, .hidden = 6000, .x = kF}, "three words per thread"},
        {{.tokens = 5, .hidden = 8}, "the smallest row"},
        {{.tokens = 9, .hidden = 2880}, "strided rows", Fill::kNormal, apart},
        {{.tokens = 9, .hidden = 200, .x = kF, .w = kF}, "all in f32, strided rows", Fill::kNormal, apart},
        {{.tokens = 4, .hidden = 520, .residual = false}, "no residual stream"},
        {{.tokens = 4, .hidden = 520, .norm = false}, "no norm"},
        {{.tokens = 4, .hidden = 520, .residual = false, .norm = false}, "a copy", Fill::kNormal, apart},
        {{.tokens = 0}, "no tokens"},
    };
    constexpr Fill kFills[] = {Fill::kSomeNan, Fill::kInfinite, Fill::kTiny, Fill::kHuge, Fill::kZerosMixed};
    for (const Fill fill : kFills)
      for (const DType x : {DType::kBF16, DType::kF32})
        out.push_back({{.tokens = 6, .hidden = 48, .x = x}, "special values", fill});
    return out;
  }
  static void fill(const AllReduceNorm::Problem&, Fill fill, HostArgs<AllReduceNorm>& host, Random& random) {
    const bool huge = fill == Fill::kHuge;  // as large as possible without overflow of the squares
    const Fill stream = huge ? Fill::kNormal : fill;
    fill_floats(host.args().x, stream, random, huge ? 0x1p50 : 1);
    if (GuardedTensor* memory = host.find("stream"); memory->role() == Role::kInOut)
      fill_floats(memory->view(), stream, random, huge ? 0x1p50 : 3);
    fill_floats(host.args().weight, Fill::kNormal, random);
  }
  static AllReduceNorm::Problem random(Random& r) {
    return {.tokens = r.integer(0, 20),
            .hidden = coin(r) ? 8 * r.integer(0, 40) : r.integer(1, 300),
            .ranks = 1,
            .eps = coin(r) ? 1e-5 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0))),
            .x = any_float(r),
            .w = any_float(r),
            .residual = coin(r),
            .norm = coin(r)};
  }
};

}  // namespace sluice::test
