#pragma once
#include <gtest/gtest.h>

#include "harness/cases.h"
#include "ops/rope.h"

namespace sluice::test {

inline void fill_rope(const Rope::Problem& p, Fill fill, const Rope::Args& args, Random& random) {
  fill_floats(args.x, fill, random);
  const RopeScaling scaling{.factor = coin(random) ? 1.0 : 32.0};
  ASSERT_TRUE(rope_table(scaling, p.table_rows, p.rotary, args.table.as<float>()).ok());
  set_each(args.positions, [&](int64_t, int64_t) -> double {
    if (fill == Fill::kEmpty)
      return static_cast<double>(one_of(random, {-1, p.table_rows, INT32_MIN, INT32_MAX}));
    if (fill == Fill::kSkewed) return static_cast<double>(p.table_rows - 1);
    return static_cast<double>(random.integer(-1, p.table_rows));  // -1 and p.table_rows are out of range
  });
}

template <>
struct Suite<Rope> {
  static std::vector<Case<Rope>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    const auto woven = RopePairs::kInterleaved;
    return {
        {{.tokens = 2, .heads = 72, .head_dim = 64, .rotary = 64}, "gpt-oss decode, q and k together"},
        {{.tokens = 3,
          .heads = 5,
          .head_dim = 192,
          .rotary = 64,
          .first = 128,
          .table_rows = 99,
          .pairs = woven},
         "DeepSeek's interleaved pairs after elements that are not rotated"},
        {{.tokens = 5, .heads = 2, .head_dim = 61, .rotary = 30, .first = 17, .table_rows = 9, .x = kF},
         "elements that are not rotated, before and after",
         Fill::kNormal,
         apart},
        {{.tokens = 7, .heads = 3, .head_dim = 128, .rotary = 128, .table_rows = 40, .x = kF}, "f32"},
        {{.tokens = 7, .heads = 3, .head_dim = 81, .rotary = 46, .table_rows = 11},
         "sizes that no tile divides",
         Fill::kNormal,
         apart},
        {{.tokens = 7, .heads = 3, .head_dim = 81, .rotary = 46, .table_rows = 11, .pairs = woven},
         "interleaved pairs, sizes that no tile divides",
         Fill::kNormal,
         apart},
        {{.tokens = 7, .heads = 2, .head_dim = 70, .rotary = 70, .table_rows = 11, .pairs = woven, .x = kF},
         "interleaved pairs, f32",
         Fill::kNormal,
         apart},
        {{.tokens = 4, .heads = 1, .head_dim = 2, .rotary = 2, .table_rows = 1}, "the smallest sizes"},
        {{.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 32, .table_rows = 9},
         "every position out of range",
         Fill::kEmpty},
        {{.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 48, .table_rows = 9, .x = kF},
         "NaN stays in its pair",
         Fill::kSomeNan},
        {{.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 48, .table_rows = 9, .x = kF},
         "infinities",
         Fill::kInfinite},
        {{.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 48, .table_rows = 9, .x = kF},
         "subnormal numbers",
         Fill::kTiny},
        {{.tokens = 0, .heads = 4, .head_dim = 48, .rotary = 48}, "no tokens"},
    };
  }
  static void fill(const Rope::Problem& p, Fill fill, HostArgs<Rope>& host, Random& random) {
    fill_rope(p, fill, host.args(), random);
  }
  static Rope::Problem random(Random& r) {
    const int64_t rotary = coin(r) ? 2 * r.integer(1, 70) : r.integer(1, 140);
    return {.tokens = r.integer(0, 12),
            .heads = r.integer(1, 9),
            .head_dim = rotary + (coin(r) ? 0 : r.integer(-1, 40)),
            .rotary = rotary,
            .first = coin(r) ? 0 : r.integer(-1, 40),
            .table_rows = r.integer(1, 50),
            .pairs = coin(r) ? RopePairs::kHalves : RopePairs::kInterleaved,
            .x = any_float(r)};
  }
};

}  // namespace sluice::test
