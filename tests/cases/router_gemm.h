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
        {{.tokens = 3, .experts = 256, .hidden = 512}, "DeepSeek V3's width of experts, f32 logits"},
        {{.tokens = 5, .experts = 64, .hidden = 768, .w = kF}, "MiniMax: f32 weights"},
        {{.tokens = 2, .experts = 48, .hidden = 320, .x = kF, .w = kF, .y = kF, .bias = true}, "all in f32"},
        {{.tokens = 67, .experts = 33, .hidden = 136}, "a multiple of nothing"},
        {{.tokens = 17, .experts = 1, .hidden = 1}, "the smallest of each"},
        {{.tokens = 0, .experts = 128, .hidden = 2880}, "no tokens"},
        {{.tokens = 193, .experts = 130, .hidden = 1096, .y = kB, .bias = true},
         "one past tiles, the sum in parts"},
        {{.tokens = 1030, .experts = 72, .hidden = 72}, "tiles that take the whole sum"},
        {{.tokens = 150, .experts = 40, .hidden = 328, .bias = true},
         "rows of x that no tensor copy can begin at",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 200, .experts = 70, .hidden = 584}, "NaN beside tails of every kind", Fill::kSomeNan},
        {{.tokens = 4, .experts = 24, .hidden = 96}, "rows apart", Fill::kNormal, Spread::kStridedRows},
        {{.tokens = 6, .experts = 20, .hidden = 200}, "NaN spreads along its row", Fill::kSomeNan},
        {{.tokens = 6, .experts = 20, .hidden = 200, .bias = true}, "below the smallest normal", Fill::kTiny},
    };
  }
  static void fill(const RouterGemm::Problem&, Fill fill, HostArgs<RouterGemm>& host, Random& random) {
    fill_rarely(host.args().x, fill, random);
    fill_rarely(host.args().w, fill == Fill::kHuge ? Fill::kNormal : fill, random, 0.05);
    fill_floats(host.args().bias, Fill::kNormal, random);
  }
  static RouterGemm::Problem random(Random& r) {
    return {.tokens = r.integer(0, 40),
            .experts = r.integer(1, 70),
            .hidden = r.integer(1, 300),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r),
            .bias = coin(r)};
  }
};

}  // namespace sluice::test
