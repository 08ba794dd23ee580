#pragma once
#include "cases/kv_write.h"
#include "cases/rope.h"
#include "ops/fused/latent_norm_rope_kv_write.h"

namespace sluice::test {

template <>
struct Suite<LatentNormRopeKvWrite> {
  using P = LatentNormRopeKvWrite::Problem;
  static std::vector<Case<LatentNormRopeKvWrite>> cases() {
    constexpr DType kF = DType::kF32;
    constexpr RopePairs kWoven = RopePairs::kInterleaved;
    const auto apart = Spread::kStridedRows;
    const auto of = [](P p, int64_t tokens) { return LatentNormRopeKvWrite::at_tokens(p, tokens); };
    const P moonlight{.rope = {.tokens = 3,
                               .heads = 16,
                               .head_dim = 192,
                               .rotary = 64,
                               .first = 128,
                               .table_rows = 40,
                               .pairs = kWoven},
                      .pages = 5,
                      .settled = true};
    P v3 = moonlight, f32 = moonlight, longest = moonlight, narrow = moonlight;
    v3.rope.heads = 128, v3.settled = false;
    f32.rope.x = kF, f32.norm_w = kF, f32.rank = 128, f32.page_size = 3, f32.eps = 1e-5;
    longest.rank = 960;
    narrow.rope.heads = 5, narrow.rope.head_dim = 24, narrow.rope.rotary = 8, narrow.rope.first = 16,
    narrow.rank = 8, narrow.page_size = 1;
    P halves = f32;
    halves.rope.pairs = RopePairs::kHalves;
    const P odd{.rope = {.tokens = 9,
                         .heads = 3,
                         .head_dim = 17,
                         .rotary = 6,
                         .first = 5,
                         .table_rows = 11,
                         .pairs = kWoven},
                .rank = 13,
                .pages = 4,
                .page_size = 5};
    std::vector<Case<LatentNormRopeKvWrite>> out = {
        {of(moonlight, 1), "Moonlight's heads, one token"},
        {moonlight, "Moonlight's heads, strided rows", Fill::kNormal, apart},
        {of(moonlight, 40), "a prompt", Fill::kNormal, apart},
        {of(moonlight, 0), "no tokens"},
        {of(v3, 7), "DeepSeek V3's heads", Fill::kNormal, apart},
        {f32, "all in f32", Fill::kNormal, apart},
        {longest, "a row of 1024 elements"},
        {of(narrow, 12), "a row of two groups of eight; one slot per page", Fill::kNormal, apart},
        {halves, "pairs half a head apart", Fill::kNormal, apart},
        {odd, "sizes that no tile divides", Fill::kNormal, apart},
        {{.rope = {.tokens = 2, .heads = 1, .head_dim = 2, .rotary = 2, .table_rows = 1},
          .rank = 1,
          .pages = 1,
          .page_size = 2},
         "the smallest sizes"},
    };
    constexpr Fill kFills[] = {Fill::kEmpty, Fill::kSkewed, Fill::kSomeNan,   Fill::kInfinite,
                               Fill::kTiny,  Fill::kHuge,   Fill::kZerosMixed};
    for (const Fill fill : kFills)
      for (const P& p : {f32, moonlight, odd}) out.push_back({p, "special values", fill});
    add_unaligned(&out);
    return out;
  }
  // Fills tensors as the suites of its parts do; values are as large as possible without overflow of the
  // squares.
  static void fill(const P& p, Fill fill, HostArgs<LatentNormRopeKvWrite>& host, Random& random) {
    const LatentNormRopeKvWrite::Args& a = host.args();
    fill_rope(p.rope, fill, {.positions = a.positions, .table = a.table, .x = a.q}, random);
    fill_kv_write(LatentNormRopeKvWrite::write(p), fill,
                  {.k = a.k, .v = {}, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = {}}, random);
    if (fill == Fill::kHuge) fill_floats(a.k, Fill::kNormal, random, 0x1p50);
    fill_floats(a.norm_weight, Fill::kNormal, random);
  }
  // Two thirds of the problems have sizes that are multiples of eight.
  static P random(Random& r) {
    P p{.rope = Suite<Rope>::random(r)};
    p.rank = r.integer(1, 300);
    if (r.integer(0, 2) > 0) {
      p.rope.rotary = 8 * r.integer(1, 16), p.rope.first = 8 * r.integer(0, 4);
      p.rope.head_dim = p.rope.first + p.rope.rotary + 8 * r.integer(0, 4);
      p.rope.pairs = RopePairs::kInterleaved;
      p.rank = 8 * r.integer(1, 80);
    }
    p.pages = r.integer(1, 9);
    p.page_size = r.integer(1, 20);
    p.settled = coin(r);
    p.eps = coin(r) ? 1e-6 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0)));
    p.norm_w = any_float(r);
    p.x_unaligned = r.integer(0, 3) == 0;
    return p;
  }
};

}  // namespace sluice::test
