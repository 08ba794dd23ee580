#pragma once
#include "cases/kv_write.h"
#include "cases/rope.h"
#include "ops/fused/qk_norm_rope_kv_write.h"

namespace sluice::test {

template <>
struct Suite<QkNormRopeKvWrite> {
  static std::vector<Case<QkNormRopeKvWrite>> cases() {
    using P = QkNormRopeKvWrite::Problem;
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    const auto narrow = [](P p) { return p.rotation.cache = CacheType::kE4M3, p; };
    const auto of = [](P p, int64_t tokens) { return QkNormRopeKvWrite::at_tokens(p, tokens); };
    const P qwen{
        .rotation = {.rope = {.tokens = 3, .heads = 32, .head_dim = 128, .rotary = 128, .table_rows = 40},
                     .kv_heads = 4,
                     .pages = 5,
                     .page_size = 16,
                     .settled = true}};
    const P f32{
        .rotation =
            {.rope = {.tokens = 9, .heads = 4, .head_dim = 64, .rotary = 64, .table_rows = 9, .x = kF},
             .kv_heads = 2,
             .pages = 3,
             .page_size = 4},
        .eps = 1e-5,
        .norm_w = kF};
    // A quarter of each team is idle; elements before and after the rotated ones stay unchanged.
    const P partial{
        .rotation =
            {.rope = {.tokens = 7, .heads = 5, .head_dim = 96, .rotary = 64, .first = 16, .table_rows = 20},
             .kv_heads = 3,
             .pages = 12,
             .page_size = 1},
        .norm_w = kF};
    const P woven{.rotation = {.rope = {.tokens = 12,
                                        .heads = 3,
                                        .head_dim = 64,
                                        .rotary = 24,
                                        .first = 8,
                                        .table_rows = 20,
                                        .pairs = RopePairs::kInterleaved},
                               .kv_heads = 2,
                               .pages = 2,
                               .page_size = 11}};
    const P odd{.rotation = {.rope = {.tokens = 41,
                                      .heads = 6,
                                      .head_dim = 17,
                                      .rotary = 14,
                                      .first = 2,
                                      .table_rows = 50,
                                      .x = kF},
                             .kv_heads = 3,
                             .pages = 7,
                             .page_size = 13}};
    const P widest{
        .rotation = {.rope = {.tokens = 5, .heads = 2, .head_dim = 256, .rotary = 256, .table_rows = 9},
                     .kv_heads = 1,
                     .pages = 3,
                     .page_size = 7}};
    P wider = widest, one_lane = woven, two_lanes = f32, half_eights = partial;
    wider.rotation.rope.head_dim = 264;
    one_lane.rotation.rope.head_dim = one_lane.rotation.rope.rotary = 8, one_lane.rotation.rope.first = 0;
    two_lanes.rotation.rope.head_dim = two_lanes.rotation.rope.rotary = 16;
    half_eights.rotation.rope.rotary = 56;
    std::vector<Case<QkNormRopeKvWrite>> out = {
        {of(qwen, 1), "Qwen3's heads, one token"},
        {qwen, "Qwen3's heads, strided rows", Fill::kNormal, apart},
        {of(qwen, 40), "a prompt", Fill::kNormal, apart},
        {of(qwen, 0), "no tokens"},
        {f32, "all in f32", Fill::kNormal, apart},
        {partial, "heads of 96, some elements not rotated; one slot per page", Fill::kNormal, apart},
        {woven, "interleaved pairs between elements that are not rotated", Fill::kNormal, apart},
        {odd, "sizes that no tile divides", Fill::kNormal, apart},
        {widest, "the widest head that a warp holds"},
        {wider, "a head wider than a warp holds"},
        {one_lane, "a head in one lane"},
        {two_lanes, "a head in two lanes"},
        {half_eights, "half heads that eight does not divide"},
        {{.rotation = {.rope = {.tokens = 2, .heads = 1, .head_dim = 2, .rotary = 2, .table_rows = 1},
                       .kv_heads = 1,
                       .pages = 1,
                       .page_size = 2}},
         "the smallest sizes"},
        {narrow(qwen), "e4m3", Fill::kNormal, apart},
        {narrow(f32), "f32 in e4m3", Fill::kNormal, apart},
        {narrow(partial), "heads of 96 in e4m3"},
        {narrow(woven), "interleaved pairs in e4m3", Fill::kNormal, apart},
        {narrow(odd), "e4m3, sizes that no tile divides", Fill::kNormal, apart},
    };
    constexpr Fill kFills[] = {Fill::kEmpty, Fill::kSkewed, Fill::kSomeNan,   Fill::kInfinite,
                               Fill::kTiny,  Fill::kHuge,   Fill::kZerosMixed};
    for (const Fill fill : kFills)
      for (const P& p : {f32, partial, narrow(woven)}) out.push_back({p, "special values", fill});
    add_unaligned(&out);
    return out;
  }
  // Fills tensors as the suites of its parts do; queries and keys are as large as possible without overflow
  // of the squares.
  static void fill(const QkNormRopeKvWrite::Problem& p, Fill fill, HostArgs<QkNormRopeKvWrite>& host,
                   Random& random) {
    const QkNormRopeKvWrite::Args& a = host.args();
    fill_rope(p.rotation.rope, fill, {.positions = a.positions, .table = a.table, .x = a.q}, random);
    fill_kv_write(RopeKvWrite::write(p.rotation), fill,
                  {.k = a.k, .v = a.v, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache},
                  random);
    for (const Tensor* t : {&a.q, &a.k})
      if (fill == Fill::kHuge) fill_floats(*t, Fill::kNormal, random, 0x1p50);
    for (const Tensor* t : {&a.q_norm, &a.k_norm}) fill_floats(*t, Fill::kNormal, random);
  }
  // Two thirds of the problems have head sizes that are multiples of eight.
  static QkNormRopeKvWrite::Problem random(Random& r) {
    QkNormRopeKvWrite::Problem p{.rotation = {.rope = Suite<Rope>::random(r)}};
    Rope::Problem& rope = p.rotation.rope;
    if (r.integer(0, 2) > 0) {
      rope.rotary = 16 * r.integer(1, 8);
      rope.first = 8 * r.integer(0, 4);
      rope.head_dim = rope.first + rope.rotary + 8 * r.integer(0, 14);
    }
    p.rotation.kv_heads = r.integer(0, 5);
    p.rotation.pages = r.integer(1, 9);
    p.rotation.page_size = r.integer(1, 20);
    p.rotation.settled = coin(r);
    if (coin(r)) p.rotation.cache = CacheType::kE4M3;
    p.eps = coin(r) ? 1e-6 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0)));
    p.norm_w = any_float(r);
    p.x_unaligned = r.integer(0, 3) == 0;
    return p;
  }
};

}  // namespace sluice::test
