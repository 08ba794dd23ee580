#pragma once
#include "cases/rare.h"
#include "ops/linear.h"

namespace sluice::test {

inline void fill_linear(const Linear::Problem& p, Fill fill, const Linear::Args& a, Random& random) {
  fill_rarely(a.x, fill, random);
  fill_floats(a.bias, Fill::kNormal, random);
  fill_floats(a.residual, fill == Fill::kSomeNan ? Fill::kNormal : fill, random);
  const Fill w = fill == Fill::kHuge || fill == Fill::kInfinite ? Fill::kNormal : fill;
  if (p.layout == WeightLayout::kRowMajor) return fill_rarely(a.w, w, random, 0.05);
  std::vector<BF16> rows(static_cast<size_t>(p.features * p.width));
  fill_rarely(make_tensor(rows.data(), DType::kBF16, {p.features, p.width}), w, random, 0.05);
  const PanelShape s = panel_shape(p.features, false, p.width);
  std::memset(a.w.data, 0, static_cast<size_t>(s.code_bytes({})));
  for (int64_t n = 0; n < p.features; ++n)
    for (int64_t k = 0; k < p.width; ++k)
      a.w.as<BF16>()[panel_bf16_index(s, panel_row(false, n, false), k)] =
          rows[static_cast<size_t>(n * p.width + k)];
}

template <>
struct Suite<Linear> {
  static std::vector<Case<Linear>> cases() {
    constexpr DType kF = DType::kF32, kB = DType::kBF16;
    constexpr auto kPanels = WeightLayout::kPanels16;
    std::vector<Case<Linear>> out = {
        {{.tokens = 1, .features = 512, .width = 2880, .layout = kPanels, .bias = true},
         "gpt-oss: a slice of qkv"},
        {{.tokens = 2, .features = 180, .width = 4096, .bias = true, .residual = true},
         "gpt-oss: attention output"},
        {{.tokens = 9, .features = 80, .width = 512, .layout = kPanels, .residual = true},
         "nine rows, panels"},
        {{.tokens = 3, .features = 97, .width = 64, .y = kF}, "unembedding: f32 logits"},
        {{.tokens = 67, .features = 33, .width = 77}, "sizes that no tile divides"},
        {{.tokens = 67, .features = 33, .width = 77, .layout = kPanels, .bias = true}, "the same in panels"},
        {{.tokens = 130, .features = 17, .width = 34, .layout = kPanels},
         "more rows than a kernel processes at once"},
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
        {{.tokens = 1, .features = 1, .width = 1}, "the smallest sizes"},
        {{.tokens = 1, .features = 1, .width = 1, .layout = kPanels}, "the smallest sizes in panels"},
        {{.tokens = 0, .features = 128, .width = 288}, "no tokens"},
        {{.tokens = 0, .features = 128, .width = 288, .layout = kPanels}, "no tokens, panels"},
        {{.tokens = 7, .features = 21, .width = 65, .bias = true, .residual = true},
         "strided rows",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 7, .features = 21, .width = 65, .layout = kPanels, .bias = true, .residual = true},
         "strided rows, panels",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 6, .features = 20, .width = 40}, "NaN spreads along its row", Fill::kSomeNan},
        {{.tokens = 6, .features = 20, .width = 40, .layout = kPanels}, "NaN, panels", Fill::kSomeNan},
        {{.tokens = 6, .features = 20, .width = 24, .w = kB, .y = kF, .layout = kPanels},
         "infinities",
         Fill::kInfinite},
        {{.tokens = 6, .features = 20, .width = 200, .layout = kPanels, .bias = true},
         "subnormal numbers",
         Fill::kTiny},
        {{.tokens = 6, .features = 20, .width = 30, .y = kF, .residual = true}, "huge", Fill::kHuge},
        {{.tokens = 1, .features = 300, .width = 2880, .bias = true, .residual = true},
         "one row on tensor cores"},
        {{.tokens = 1, .features = 2117, .width = 136, .bias = true},
         "one row, more slabs of 16 features than CTAs"},
        {{.tokens = 7, .features = 2117, .width = 136, .y = kF},
         "more slabs of 16 features than CTAs, a tail in every dimension"},
        {{.tokens = 5, .features = 4300, .width = 136, .residual = true},
         "three slabs of 16 features per SM"},
        {{.tokens = 3, .features = 1100, .width = 4616, .bias = true},
         "one slab per SM, rows wider than a warp holds"},
        {{.tokens = 8, .features = 40, .width = 7176, .bias = true}, "rows wider than a warp holds"},
        {{.tokens = 1, .features = 40, .width = 8192, .bias = true},
         "the widest row that fits in shared memory"},
        {{.tokens = 1, .features = 24, .width = 8200, .residual = true},
         "a row that does not fit in shared memory"},
        {{.tokens = 5, .features = 72, .width = 4096, .y = kF, .bias = true, .residual = true},
         "the widest row that a warp holds, f32 residual"},
        {{.tokens = 9, .features = 64, .width = 128, .bias = true},
         "the smallest width that tensor cores accept"},
        {{.tokens = 16, .features = 180, .width = 1096, .bias = true, .residual = true},
         "a full tile of rows; features end within one"},
        {{.tokens = 33, .features = 127, .width = 200, .bias = true, .residual = true},
         "a feature count that four does not divide"},
        {{.tokens = 129, .features = 130, .width = 264, .y = kF, .bias = true, .residual = true},
         "one row and two features more than a tile"},
        {{.tokens = 6, .features = 100, .width = 256, .bias = true, .residual = true},
         "rows at odd addresses",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 90, .features = 100, .width = 256, .y = kF, .bias = true, .residual = true},
         "many rows at odd addresses",
         Fill::kNormal,
         Spread::kStridedRows},
        {{.tokens = 8, .features = 50, .width = 256, .bias = true}, "NaN in few rows", Fill::kSomeNan},
        {{.tokens = 40, .features = 70, .width = 256, .residual = true}, "NaN in some rows", Fill::kSomeNan},
        {{.tokens = 7, .features = 48, .width = 128, .y = kF}, "infinities on tensor cores", Fill::kInfinite},
        {{.tokens = 20, .features = 48, .width = 136, .y = kF}, "infinities in tiles", Fill::kInfinite},
        {{.tokens = 17, .features = 90, .width = 144, .bias = true}, "tiny numbers in tiles", Fill::kTiny},
        {{.tokens = 3, .features = 90, .width = 144, .y = kF, .residual = true}, "huge numbers", Fill::kHuge},
        {{.tokens = 70, .features = 90, .width = 130, .x = kF, .bias = true}, "f32 x, more rows than a tile"},
        {{.tokens = 3, .features = 70, .width = 300, .w = kF, .bias = true, .residual = true},
         "f32 w, bf16 x"},
        {{.tokens = 0, .features = 128, .width = 288, .x = kF}, "no tokens, f32"},
    };
    add_unaligned(&out);
    return out;
  }
  static void fill(const Linear::Problem& p, Fill fill, HostArgs<Linear>& host, Random& random) {
    fill_linear(p, fill, host.args(), random);
  }
  // Half of the problems have types, width and layout that tensor cores accept.
  static Linear::Problem random(Random& r) {
    if (coin(r))
      return {.tokens = one_of(r, {r.integer(0, 20), r.integer(1, 140)}),
              .features = r.integer(1, 140),
              .width = 8 * r.integer(16, 48),
              .y = any_float(r),
              .bias = coin(r),
              .residual = coin(r),
              .x_unaligned = r.integer(0, 3) == 0};
    return {.tokens = r.integer(0, 20),
            .features = r.integer(1, 70),
            .width = r.integer(1, 150),
            .x = any_float(r),
            .w = any_float(r),
            .y = any_float(r),
            .layout = coin(r) ? WeightLayout::kPanels16 : WeightLayout::kRowMajor,
            .bias = coin(r),
            .residual = coin(r),
            .x_unaligned = coin(r)};
  }
};

}  // namespace sluice::test
