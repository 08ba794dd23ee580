#pragma once
#include <tuple>
#include <vector>

#include "harness/cases.h"
#include "ops/expert_gemm.h"

namespace sluice::test {

// ExpertGemm cases for kernels that compute tiles or units of row blocks; all weights are in fragment layout.
class ExpertGemmTiles {
 public:
  using Cases = std::vector<Case<ExpertGemm>>;
  static void add(Cases* out) {
    add_one_expert_with_all_rows(out);
    add_mxfp4_tiles(out);
    add_short_sums(out);
    add_bf16_rows_of_tokens(out);
    add_fp8_x(out);
  }

 private:
  static constexpr DType kF = DType::kF32, kB = DType::kBF16;
  struct Sizes {
    int64_t rows, expected, features, width;
  };

  static void add_one_expert_with_all_rows(Cases* out) {
    // One expert has all rows, so that every wgmma width and every tile that rows_expected selects occurs.
    // Sums have one k block or more than the TMA ring holds, all with a tail or without the last block.
    for (const auto& [rows, expected, features, width] :
         {Sizes{5, 0, 300, 1000},   Sizes{12, 0, 130, 72},     Sizes{30, 60, 64, 64},
          Sizes{40, 60, 264, 712},  Sizes{60, 60, 72, 640},    Sizes{50, 160, 40, 328},
          Sizes{90, 160, 136, 8},   Sizes{120, 160, 33, 576},  Sizes{90, 400, 300, 136},
          Sizes{120, 400, 24, 320}, Sizes{155, 400, 129, 72},  Sizes{190, 400, 56, 264},
          Sizes{500, 400, 31, 96},  Sizes{150, 256, 136, 72},  Sizes{170, 256, 300, 136},
          Sizes{300, 600, 56, 264}, Sizes{350, 600, 129, 136}, Sizes{500, 800, 31, 96},
          Sizes{520, 800, 136, 72}, Sizes{9, 0, 17000, 40}}) {
      for (const Activation act : {Activation::kSwiGlu, Activation::kRelu2})
        out->push_back({{.rows = rows,
                         .rows_expected = expected,
                         .experts = 2,
                         .features = features,
                         .width = width,
                         .w = kB,
                         .layout = WeightLayout::kFragments,
                         .gate_order = GateOrder::kGateFirst,
                         .act = act,
                         .bias = true},
                        "bf16 tiles, one expert has all rows",
                        Fill::kSkewed});
    }
  }

  static void add_mxfp4_tiles(Cases* out) {
    // rows_expected selects launches with several kinds of tiles; the actual row counts decide which tile
    // computes which expert. Token rows are fetched by CTA pairs, or one by one.
    for (const auto& [slots, features, width] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 72, 320}, {2, 72, 320}, {2, 1300, 96}})
      for (const int64_t rows : {40, 80, 150, 200})
        out->push_back({{.rows = rows,
                         .rows_expected = 4'000'000,
                         .experts = 3,
                         .features = features,
                         .width = width,
                         .tokens = slots > 0 ? rows / slots : 0,
                         .slots = slots,
                         .layout = WeightLayout::kFragments,
                         .act = Activation::kSwiGluClamped,
                         .alpha = 1.702,
                         .beta = 1,
                         .limit = 7,
                         .bias = true},
                        "fewer rows per expert than expected, tiles for the actual rows",
                        rows == 200 ? Fill::kNormal : Fill::kSkewed});
    // Token rows: gathered first if weights have many rows; otherwise fetched by CTA pairs. One CTA of a pair
    // has one row block more than the other, or all row blocks. Last tiles are whole or partial.
    for (const auto& [rows, expected, features, width] :
         {Sizes{120, 140, 2600, 96}, Sizes{150, 250, 136, 96}, Sizes{400, 600, 60, 160},
          Sizes{700, 1000, 300, 224}, Sizes{10, 4000, 19000, 640}, Sizes{60, 4400, 15300, 160},
          Sizes{420, 1600, 1000, 96}, Sizes{420, 1600, 3000, 96}})
      out->push_back({{.rows = rows,
                       .rows_expected = expected,
                       .experts = 2,
                       .features = features,
                       .width = width,
                       .tokens = rows / 2,
                       .slots = 2,
                       .y = width == 224 ? kF : kB,
                       .layout = WeightLayout::kFragments,
                       .act = Activation::kRelu2,
                       .weighted = width == 160},
                      "mxfp4 tiles, token rows",
                      rows == 420 ? Fill::kSkewed : Fill::kNormal,
                      rows == 700 ? Spread::kStridedRows : Spread::kContiguous});
  }

  static void add_short_sums(Cases* out) {
    // Short sums: more units than teams in the grid, so a team computes several units, and several chunks of
    // one expert's rows.
    for (const auto& [rows, expected, features, width] :
         {Sizes{9, 0, 36000, 32}, Sizes{20, 4, 17000, 96}, Sizes{34, 0, 9000, 352}, Sizes{20, 4, 9000, 320}})
      out->push_back({{.rows = rows,
                       .rows_expected = expected,
                       .experts = 2,
                       .features = features,
                       .width = width,
                       .tokens = width == 352 ? rows / 2 : 0,
                       .slots = width == 352 ? 2 : 0,
                       .y = width == 96 ? kF : kB,
                       .layout = WeightLayout::kFragments,
                       .act = width == 320 ? Activation::kRelu2 : Activation::kIdentity,
                       .bias = width > 32,
                       .weighted = width == 352},
                      "short sums, several row blocks per team",
                      width == 96 ? Fill::kSkewed : Fill::kNormal});
    // The same in bf16, in units of 8, 16 and 32 rows; an expert with 70 rows has several units.
    for (const auto& [rows, expected, features, width] :
         {Sizes{9, 0, 36000, 32}, Sizes{20, 4, 17000, 96}, Sizes{20, 16, 9000, 256}, Sizes{70, 0, 9000, 200}})
      out->push_back({{.rows = rows,
                       .rows_expected = expected,
                       .experts = 2,
                       .features = features,
                       .width = width,
                       .tokens = width == 256 ? rows / 2 : 0,
                       .slots = width == 256 ? 2 : 0,
                       .w = kB,
                       .y = width == 96 ? kF : kB,
                       .layout = WeightLayout::kFragments,
                       .act = width == 200 ? Activation::kRelu2 : Activation::kIdentity,
                       .bias = width > 32,
                       .weighted = width == 256},
                      "short sums in bf16, several row blocks per team",
                      width == 32 ? Fill::kNormal : Fill::kSkewed});
    // 210 tiles for 132 SMs leave 78 for the last wave. They are cut: every two tiles become three parts of
    // two warpgroups each, the widest part first.
    out->push_back({{.rows = 36,
                     .rows_expected = 120,
                     .experts = 3,
                     .features = 26880,
                     .width = 32,
                     .layout = WeightLayout::kFragments,
                     .act = Activation::kRelu2},
                    "mxfp4 tiles, a last wave of about two thirds"});
  }

  static void add_bf16_rows_of_tokens(Cases* out) {
    // Token rows: one copy per row, in groups of 16 or 8 columns. If weights have many rows, the kernel
    // orders the token rows first; cases then have tiles that share weights or rows of x, sums in chunks, and
    // tiles in later waves of the grid.
    for (const auto& [rows, expected, features, width] :
         {Sizes{150, 256, 136, 72}, Sizes{400, 600, 70, 136}, Sizes{700, 1000, 136, 200},
          Sizes{10, 600, 5000, 640}, Sizes{10, 400, 19000, 840}, Sizes{60, 600, 3000, 520},
          Sizes{60, 400, 3500, 840}, Sizes{420, 1600, 3000, 72}})
      out->push_back({{.rows = rows,
                       .rows_expected = expected,
                       .experts = 2,
                       .features = features,
                       .width = width,
                       .tokens = rows / 2,
                       .slots = 2,
                       .w = kB,
                       .layout = WeightLayout::kFragments,
                       .act = Activation::kRelu2},
                      "bf16 tiles, token rows",
                      rows == 420 ? Fill::kSkewed : Fill::kNormal});
    // Columns of tiles, used for short sums with many rows.
    out->push_back({{.rows = 400,
                     .rows_expected = 1000,
                     .experts = 2,
                     .features = 512,
                     .width = 192,
                     .w = kB,
                     .layout = WeightLayout::kFragments},
                    "bf16 tiles, short sums with many rows"});
  }

  // Rows of x that kernels may round to FP8, for every format whose kernels do. Widths have a last k block that is half of a row of
  // 128 bytes, a tail inside a k block, or several stages. Rows: of one tile and of several, in every width of wgmma.
  static void add_fp8_x(Cases* out) {
    constexpr WeightFormat kFormats[] = {
        {DType::kE2M1}, {DType::kE4M3, WeightScales::kRows}, {DType::kE4M3, WeightScales::kBlocks}};
    constexpr Fill kFills[] = {Fill::kNormal, Fill::kSkewed, Fill::kSkewed,   Fill::kSomeNan, Fill::kTiny,
                               Fill::kHuge,   Fill::kSkewed, Fill::kAllEqual, Fill::kSkewed,  Fill::kEmpty};
    size_t next = 0;
    for (const WeightFormat& f : kFormats)
      for (const int64_t slots : {0, 2})
        for (const auto& [rows, features, width] : {std::tuple<int64_t, int64_t, int64_t>{30, 72, 64},
                                                    {70, 200, 320},
                                                    {100, 33, 192},
                                                    {118, 300, 2880},
                                                    {130, 96, 96},
                                                    {150, 40, 704},
                                                    {170, 129, 256},
                                                    {190, 64, 1088},
                                                    {300, 264, 480},
                                                    {500, 48, 160}}) {
          const bool first = slots > 0;
          out->push_back({{.rows = rows,
                           .rows_expected = 2000,
                           .experts = 3,
                           .features = features,
                           .width = f.w == DType::kE2M1 ? width : width + 8 * (rows % 3),
                           .tokens = first ? rows / slots : 0,
                           .slots = slots,
                           .w = f.w,
                           .y = rows == 170 ? kF : kB,
                           .scales = f.scales,
                           .layout = WeightLayout::kFragments,
                           .act = first ? Activation::kSwiGluClamped : Activation::kIdentity,
                           .alpha = 1.702,
                           .beta = 1,
                           .limit = 7,
                           .bias = rows != 300,
                           .weighted = first && rows == 500,
                           .fp8_x = true},
                          "rows of x that may be rounded to FP8",
                          kFills[next++ % std::size(kFills)],
                          rows == 150 ? Spread::kStridedRows : Spread::kContiguous});
        }
  }
};

}  // namespace sluice::test
