#pragma once
#include "cases/kv_write.h"
#include "cases/rope.h"
#include "ops/fused/rope_kv_write.h"

namespace sluice::test {

template <>
struct Suite<RopeKvWrite> {
  static std::vector<Case<RopeKvWrite>> cases() {
    constexpr DType kF = DType::kF32;
    using P = RopeKvWrite::Problem;
    const auto apart = Spread::kStridedRows;
    const auto narrow = [](P p) { return p.cache = CacheType::kE4M3, p; };
    const P odd{
        .rope =
            {.tokens = 41, .heads = 6, .head_dim = 17, .rotary = 14, .first = 2, .table_rows = 50, .x = kF},
        .kv_heads = 3,
        .pages = 7,
        .page_size = 13};
    const P woven{.rope = {.tokens = 12,
                           .heads = 4,
                           .head_dim = 32,
                           .rotary = 16,
                           .first = 16,
                           .table_rows = 20,
                           .pairs = RopePairs::kInterleaved},
                  .kv_heads = 2,
                  .pages = 12,
                  .page_size = 1};
    const P whole{.rope = {.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 48, .table_rows = 9, .x = kF},
                  .kv_heads = 2,
                  .pages = 3,
                  .page_size = 4};
    const P aligned{.rope = {.tokens = 9, .heads = 4, .head_dim = 64, .rotary = 64, .table_rows = 9},
                    .kv_heads = 2,
                    .pages = 3,
                    .page_size = 4};
    return {
        {{.rope = {.tokens = 3}, .kv_heads = 8, .pages = 5, .page_size = 16},
         "gpt-oss decode",
         Fill::kNormal,
         apart},
        {odd, "sizes that no tile divides", Fill::kNormal, apart},
        {woven, "interleaved pairs after elements that are not rotated; one slot per page"},
        {{.rope = {.tokens = 7, .heads = 2, .head_dim = 128, .rotary = 128, .table_rows = 30, .x = kF},
          .kv_heads = 2,
          .pages = 3,
          .page_size = 4},
         "f32"},
        {{.rope = {.tokens = 30, .heads = 2, .head_dim = 8, .rotary = 8, .table_rows = 9},
          .kv_heads = 2,
          .pages = 2,
          .page_size = 8},
         "more tokens than slots"},
        {{.rope = {.tokens = 2, .heads = 1, .head_dim = 2, .rotary = 2, .table_rows = 1},
          .kv_heads = 1,
          .pages = 1,
          .page_size = 2},
         "the smallest sizes"},
        {{.rope = {.tokens = 9, .heads = 4, .head_dim = 48, .rotary = 32, .table_rows = 9},
          .kv_heads = 2,
          .pages = 3,
          .page_size = 4},
         "every position and every slot out of range",
         Fill::kEmpty},
        {whole, "NaN stays in its pair", Fill::kSomeNan, apart},
        {whole, "infinities", Fill::kInfinite},
        {whole, "subnormal numbers", Fill::kTiny},
        {{.rope = {.tokens = 0, .heads = 4, .head_dim = 48, .rotary = 48},
          .kv_heads = 2,
          .pages = 3,
          .page_size = 4},
         "no tokens"},
        {narrow({.rope = {.tokens = 30}, .kv_heads = 8, .pages = 5, .page_size = 16}), "gpt-oss, e4m3",
         Fill::kNormal, apart},
        {narrow(odd), "e4m3, sizes that no tile divides", Fill::kNormal, apart},
        {narrow(woven), "e4m3, interleaved pairs after elements that are not rotated"},
        {narrow(whole), "NaN stays in its pair, in e4m3", Fill::kSomeNan, apart},
        {narrow(aligned), "infinities, in e4m3", Fill::kInfinite},
        {narrow(aligned), "numbers beyond the largest of e4m3", Fill::kHuge},
    };
  }
  // Queries and positions are filled as in Rope's suite, the rest as in KvWrite's.
  static void fill(const RopeKvWrite::Problem& p, Fill fill, HostArgs<RopeKvWrite>& host, Random& random) {
    RopeKvWrite::Args& a = host.args();
    fill_rope(p.rope, fill, {.positions = a.positions, .table = a.table, .x = a.q}, random);
    fill_kv_write(RopeKvWrite::write(p), fill,
                  {.k = a.k, .v = a.v, .slot_of = a.slot_of, .k_cache = a.k_cache, .v_cache = a.v_cache},
                  random);
  }
  static RopeKvWrite::Problem random(Random& r) {
    RopeKvWrite::Problem p{.rope = Suite<Rope>::random(r)};
    p.kv_heads = r.integer(0, 5);
    p.pages = r.integer(1, 9);
    p.page_size = r.integer(1, 20);
    p.settled = coin(r);
    if (coin(r)) p.cache = CacheType::kE4M3;
    return p;
  }
};

}  // namespace sluice::test
