#pragma once
#include "cases/rare.h"
#include "ops/linear.h"

namespace sluice::test {

template <>
struct Suite<Linear> {
  static std::vector<Case<Linear>> cases() {
    constexpr DType kF = DType::kF32, kB = DType::kBF16;
    constexpr auto kPanels = WeightLayout::kPanels16;
    return {
        {{.tokens = 1, .features = 512, .width = 2880, .layout = kPanels, .bias = true},
         "gpt-oss: a part of qkv"},
        {{.tokens = 2, .features = 180, .width = 4096, .bias = true, .residual = true},
         "gpt-oss: attention output"},
        {{.tokens = 9, .features = 80, .width = 512, .layout = kPanels, .residual = true},
         "nine rows of panels"},
        {{.tokens = 3, .features = 97, .width = 64, .y = kF}, "unembedding: f32 logits"},
        {{.tokens = 67, .features = 33, .width = 77}, "a multiple of nothing"},
        {{.tokens = 67, .features = 33, .width = 77, .layout = kPanels, .bias = true}, "the same in panels"},
        {{.tokens = 130, .features = 17, .width = 34, .layout = kPanels},
         "more rows than a kernel holds at once"},
        {{.tokens = 2,
          .features = 24,
          .width = 100,
          .x = kF,
          .w = kF,
          .y = kF,
          .bias = true,
          .residual = true},
         "all in f32"},
        {{.tokens = 5, .features = 16, .width = 31, .x = kF, .layout = kPanels}, "f32 x, bf16 panels"},
        {{.tokens = 1, .features = 1, .width = 1}, "the smallest of each"},
        {{.tokens = 1, .features = 1, .width = 1, .layout = kPanels}, "the smallest of each in panels"},
        {{.tokens = 0, .features = 128, .width = 288}, "no tokens"},
        {{.tokens = 0, .features = 128, .width = 288, .layout = kPanels}, "no tokens, panels"},
        {{.tokens = 7, .features = 21, .width = 65, .bias = true, .residual = true},
         "rows apart",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 7, .features = 21, .width = 65, .layout = kPanels, .bias = true, .residual = true},
         "rows apart, panels",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 6, .features = 20, .width = 40}, "NaN spreads along its row", Fill::kSomeNan},
        {{.tokens = 6, .features = 20, .width = 40, .layout = kPanels}, "NaN, panels", Fill::kSomeNan},
        {{.tokens = 6, .features = 20, .width = 24, .w = kB, .y = kF, .layout = kPanels},
         "infinities",
         Fill::kInfinite},
        {{.tokens = 6, .features = 20, .width = 200, .layout = kPanels, .bias = true},
         "below the smallest normal",
         Fill::kTiny},
        {{.tokens = 6, .features = 20, .width = 30, .y = kF, .residual = true}, "huge", Fill::kHuge},
    };
  }
  static void fill(const Linear::Problem& p, Fill fill, HostArgs<Linear>& host, Random& random) {
    Linear::Args& a = host.args();
    fill_rarely(a.x, fill, random);
    fill_floats(a.bias, Fill::kNormal, random);
    fill_floats(a.residual, fill == Fill::kSomeNan ? Fill::kNormal : fill, random);
    const Fill w = fill == Fill::kHuge || fill == Fill::kInfinite ? Fill::kNormal : fill;
    if (p.layout == WeightLayout::kRowMajor) return fill_rarely(a.w, w, random, 0.05);
    std::vector<BF16> rows(static_cast<size_t>(p.features * p.width));
    fill_rarely(make_tensor(rows.data(), DType::kBF16, {p.features, p.width}), w, random, 0.05);
    const PanelShape s = panel_shape(p.features, false, p.width);
    std::memset(a.w.data, 0, static_cast<size_t>(s.code_bytes(false)));
    for (int64_t n = 0; n < p.features; ++n)
      for (int64_t k = 0; k < p.width; ++k)
        a.w.as<BF16>()[panel_bf16_index(s, panel_row(false, n, false), k)] =
            rows[static_cast<size_t>(n * p.width + k)];
  }
  static Linear::Problem random(Random& r) {
    return {.tokens = r.integer(0, 20),
            .features = r.integer(1, 70),
            .width = r.integer(1, 150),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r),
            .layout = coin(r) ? WeightLayout::kPanels16 : WeightLayout::kRowMajor,
            .bias = coin(r),
            .residual = coin(r)};
  }
};

}  // namespace sluice::test
