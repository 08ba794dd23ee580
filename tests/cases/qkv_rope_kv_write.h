#pragma once
#include "cases/kv_write.h"
#include "cases/linear.h"
#include "cases/rope.h"
#include "ops/fused/qkv_rope_kv_write.h"

namespace sluice::test {

template <>
struct Suite<QkvRopeKvWrite> {
  static std::vector<Case<QkvRopeKvWrite>> cases() {
    using P = QkvRopeKvWrite::Problem;
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    const auto narrow = [](P p) { return p.rope.cache = CacheType::kE4M3, p; };
    const auto of = [](P p, int64_t tokens) { return QkvRopeKvWrite::at_tokens(p, tokens); };
    // 10 heads of 64 on 2 kv heads: a small version of gpt-oss.
    const P few{.rope = {.rope = {.tokens = 1, .heads = 10, .table_rows = 30},
                         .kv_heads = 2,
                         .pages = 5,
                         .page_size = 16,
                         .settled = true},
                .width = 2880,
                .bias = true};
    const P wide{.rope = {.rope = {.tokens = 5, .heads = 4, .head_dim = 128, .rotary = 128, .table_rows = 9},
                          .kv_heads = 1,
                          .pages = 3,
                          .page_size = 7},
                 .width = 4616};
    const P small{.rope = {.rope = {.tokens = 8, .heads = 1, .head_dim = 16, .rotary = 16, .table_rows = 12},
                           .kv_heads = 3,
                           .pages = 12,
                           .page_size = 1},
                  .width = 136,
                  .bias = true};
    const P odd{.rope = {.rope = {.tokens = 11,
                                  .heads = 3,
                                  .head_dim = 17,
                                  .rotary = 14,
                                  .first = 2,
                                  .table_rows = 50,
                                  .x = kF},
                         .kv_heads = 2,
                         .pages = 7,
                         .page_size = 13},
                .width = 77,
                .bias = true};
    const P woven{.rope = {.rope = {.tokens = 4,
                                    .heads = 4,
                                    .head_dim = 32,
                                    .rotary = 16,
                                    .first = 16,
                                    .table_rows = 20,
                                    .pairs = RopePairs::kInterleaved},
                           .kv_heads = 2,
                           .pages = 12,
                           .page_size = 1},
                  .width = 128};
    // CTAs have shares of five groups of eight columns; the last CTA has fewer.
    P whole = of(few, 65);
    whole.rope.rope.heads = 64, whole.rope.kv_heads = 8, whole.width = 136;
    // Shares of seven and of eight groups; heads of 96 in shares of five.
    P sevens = of(whole, 9), eights = of(whole, 17), heads96 = of(whole, 20);
    sevens.rope.rope.heads = 94, eights.rope.rope.heads = 112;
    heads96.rope.rope.head_dim = heads96.rope.rope.rotary = 96, heads96.rope.rope.heads = 40;
    heads96.rope.kv_heads = 4;
    P panels = of(few, 3);
    panels.width = 100, panels.layout = WeightLayout::kPanels16;
    P f32_weights = of(small, 3);
    f32_weights.w = kF;
    std::vector<Case<QkvRopeKvWrite>> out = {
        {few, "gpt-oss's heads, one token"},
        {of(few, 8), "eight tokens", Fill::kNormal, apart},
        {of(few, 9), "more than eight tokens", Fill::kNormal, apart},
        {of(few, 70), "a prompt"},
        {of(few, 0), "no tokens"},
        {of(whole, 1), "all of gpt-oss's heads, one token"},
        {of(whole, 6), "all of gpt-oss's heads, six tokens", Fill::kNormal, apart},
        {whole, "all of gpt-oss's heads", Fill::kNormal, apart},
        {of(whole, 128), "the largest row count of kernels with column shares"},
        {sevens, "seven groups of eight columns per CTA", Fill::kNormal, apart},
        {eights, "eight groups of eight columns per CTA"},
        {heads96, "heads of 96"},
        {wide, "heads of 128; rows wider than a warp holds"},
        {small, "the smallest heads that tensor cores accept; one slot per page", Fill::kNormal, apart},
        {odd, "sizes that no tile divides", Fill::kNormal, apart},
        {woven, "interleaved pairs after elements that are not rotated"},
        {panels, "weights in panels"},
        {f32_weights, "weights in f32"},
        {of(few, 5), "every position and every slot out of range", Fill::kEmpty},
        {of(few, 7), "one position for all", Fill::kSkewed},
        {of(few, 6), "NaN spreads along its row", Fill::kSomeNan, apart},
        {of(few, 40), "NaN in many rows", Fill::kSomeNan},
        {of(wide, 4), "infinities", Fill::kInfinite},
        {of(small, 5), "subnormal numbers", Fill::kTiny},
        {narrow(of(few, 8)), "e4m3", Fill::kNormal, apart},
        {narrow(of(few, 20)), "e4m3, more than eight tokens"},
        {narrow(wide), "e4m3, heads of 128"},
        {narrow(odd), "e4m3, sizes that no tile divides"},
        {narrow(of(few, 3)), "NaN in e4m3", Fill::kSomeNan},
    };
    add_unaligned(&out);
    return out;
  }
  // Fills tensors as the suites of its parts do.
  static void fill(const QkvRopeKvWrite::Problem& p, Fill fill, HostArgs<QkvRopeKvWrite>& host,
                   Random& random) {
    const QkvRopeKvWrite::Args& a = host.args();
    // Sums of huge numbers may be infinite, and rotated infinities are NaN.
    if (fill == Fill::kHuge) fill = Fill::kNormal;
    fill_linear(QkvRopeKvWrite::project(p), fill,
                {.x = a.x, .w = a.w, .bias = a.bias, .residual = {}, .y = {}}, random);
    fill_rope(p.rope.rope, fill, {.positions = a.positions, .table = a.table, .x = {}}, random);
    fill_kv_write(RopeKvWrite::write(p.rope), fill,
                  {.k = {}, .v = {}, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache},
                  random);
  }
  // Two thirds of the problems have sizes that tensor cores accept.
  static QkvRopeKvWrite::Problem random(Random& r) {
    QkvRopeKvWrite::Problem p;
    if (r.integer(0, 2) > 0) {
      const int64_t head_dim = 8 * r.integer(2, 16);
      p.rope.rope = {.tokens = coin(r) ? r.integer(0, 8) : r.integer(9, 130),
                     .heads = r.integer(1, 6),
                     .head_dim = head_dim,
                     .rotary = head_dim,
                     .table_rows = r.integer(1, 40)};
      p.width = 8 * r.integer(16, 40);
    } else {
      const int64_t rotary = 2 * r.integer(1, 20);
      p.rope.rope = {.tokens = r.integer(0, 12),
                     .heads = r.integer(1, 5),
                     .head_dim = rotary + r.integer(0, 9),
                     .rotary = rotary,
                     .table_rows = r.integer(1, 40),
                     .pairs = coin(r) ? RopePairs::kHalves : RopePairs::kInterleaved,
                     .x = any_float(r)};
      p.width = r.integer(1, 150);
      p.w = any_float(r);
      if (coin(r) && p.w == DType::kBF16) p.layout = WeightLayout::kPanels16;
    }
    p.rope.kv_heads = r.integer(0, 4);
    p.rope.pages = r.integer(1, 9);
    p.rope.page_size = r.integer(1, 20);
    p.rope.settled = coin(r);
    if (coin(r)) p.rope.cache = CacheType::kE4M3;
    p.bias = coin(r);
    p.x_unaligned = coin(r);
    return p;
  }
};

}  // namespace sluice::test
