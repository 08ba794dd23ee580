#pragma once
#include "cases/rare.h"
#include "ops/router_gemm.h"

namespace sluice::test {

template <>
struct Suite<RouterGemm> {
  static std::vector<Case<RouterGemm>> cases() {
    constexpr DType kF = DType::kF32, kB = DType::kBF16;
    return {
        {{.tokens = 1, .experts = 128, .hidden = 2880, .y = kB, .bias = true}, "gpt-oss-120b decode"},
        {{.tokens = 8, .experts = 32, .hidden = 2880, .y = kB, .bias = true}, "gpt-oss-20b, a small batch"},
        {{.tokens = 3, .experts = 256, .hidden = 512}, "DeepSeek V3's expert count, f32 logits"},
        {{.tokens = 4, .experts = 193, .hidden = 7176}, "an odd expert count, sums longer than one pass"},
        {{.tokens = 2, .experts = 193, .hidden = 7168, .bias = true}, "the longest sum of one pass"},
        {{.tokens = 2, .experts = 33, .hidden = 1032, .y = kB, .bias = true}, "few tokens, partial slices"},
        {{.tokens = 3, .experts = 200, .hidden = 2056}, "few tokens, NaN in slices", Fill::kSomeNan},
        {{.tokens = 5, .experts = 64, .hidden = 768, .w = kF}, "MiniMax: f32 weights"},
        {{.tokens = 700, .experts = 200, .hidden = 136, .w = kF},
         "f32 weights, more tokens than split-K accepts"},
        {{.tokens = 131, .experts = 130, .hidden = 1096, .w = kF, .y = kB, .bias = true},
         "f32 weights, sizes just above whole tiles, split-K"},
        {{.tokens = 90, .experts = 40, .hidden = 328, .w = kF, .bias = true},
         "f32 weights, rows of x unaligned for TMA",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 100, .experts = 70, .hidden = 584, .w = kF}, "NaN in f32 weights", Fill::kSomeNan},
        {{.tokens = 50, .experts = 20, .hidden = 200, .w = kF, .bias = true},
         "f32 weights, subnormal numbers",
         Fill::kTiny},
        {{.tokens = 2, .experts = 48, .hidden = 320, .x = kF, .w = kF, .y = kF, .bias = true}, "all in f32"},
        {{.tokens = 67, .experts = 33, .hidden = 136}, "sizes that no tile divides"},
        {{.tokens = 17, .experts = 1, .hidden = 1}, "the smallest sizes"},
        {{.tokens = 0, .experts = 128, .hidden = 2880}, "no tokens"},
        {{.tokens = 193, .experts = 130, .hidden = 1096, .y = kB, .bias = true},
         "sizes just above whole tiles, split-K"},
        {{.tokens = 1030, .experts = 72, .hidden = 72}, "tiles without split-K"},
        {{.tokens = 150, .experts = 40, .hidden = 328, .bias = true},
         "rows of x unaligned for TMA",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 200, .experts = 70, .hidden = 584}, "NaN, and a tail in every dimension", Fill::kSomeNan},
        {{.tokens = 4, .experts = 24, .hidden = 96}, "strided rows", Fill::kNormal, Spread::kStridedRows},
        {{.tokens = 6, .experts = 20, .hidden = 200}, "NaN spreads along its row", Fill::kSomeNan},
        {{.tokens = 6, .experts = 20, .hidden = 200, .bias = true}, "subnormal numbers", Fill::kTiny},
    };
  }
  static void fill(const RouterGemm::Problem&, Fill fill, HostArgs<RouterGemm>& host, Random& random) {
    fill_rarely(host.args().x, fill, random);
    fill_rarely(host.args().w, fill == Fill::kHuge ? Fill::kNormal : fill, random, 0.05);
    fill_floats(host.args().bias, Fill::kNormal, random);
  }
  static RouterGemm::Problem random(Random& r) {
    // Half of the widths have rows of whole 16-byte chunks, which most kernels need.
    return {.tokens = r.integer(0, 3) > 0 ? r.integer(0, 40) : r.integer(0, 300),
            .experts = r.integer(1, 70),
            .hidden = coin(r) ? 8 * r.integer(1, 60) : r.integer(1, 300),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r),
            .bias = coin(r)};
  }
};

}  // namespace sluice::test
