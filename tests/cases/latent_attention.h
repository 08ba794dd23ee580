#pragma once
#include <algorithm>
#include <numeric>

#include "harness/cases.h"
#include "ops/latent_attention.h"

namespace sluice::test {

template <>
struct Suite<LatentAttention> {
  using P = LatentAttention::Problem;

  static std::vector<Case<LatentAttention>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    const P small{.tokens = 11,
                  .sequences = 3,
                  .heads = 3,
                  .rank = 21,
                  .nope = 10,
                  .rope = 6,
                  .v_dim = 13,
                  .pages = 20,
                  .page_size = 7,
                  .pages_per_seq = 12,
                  .scale = 0.2};
    const auto with = [&](auto change) {
      P p = small;
      change(p);
      return p;
    };
    // Problems that tensor cores accept: sizes are multiples of the tile.
    const P tiled{.tokens = 11,
                  .sequences = 3,
                  .heads = 3,
                  .rank = 128,
                  .nope = 16,
                  .rope = 8,
                  .v_dim = 13,
                  .pages = 20,
                  .page_size = 16,
                  .pages_per_seq = 6,
                  .scale = 0.2};
    const auto with_tiles = [&](auto change) {
      P p = tiled;
      change(p);
      return p;
    };
    return {
        {{.tokens = 2, .sequences = 2, .heads = 2, .pages = 8, .page_size = 16, .pages_per_seq = 5},
         "DeepSeek V3 decode, two of its heads"},
        {with([](P& p) { p.tokens = 40, p.sequences = 1; }), "prefill"},
        {small, "sizes that no tile divides", Fill::kNormal, apart},
        {with([](P& p) { p.q = p.w = kF; }), "f32", Fill::kNormal, apart},
        {with([](P& p) { p.w = kF; }), "only the weights in f32"},
        {with([](P& p) { p.rank = p.nope = p.rope = p.v_dim = p.heads = p.page_size = 1, p.pages = 90; }),
         "the smallest sizes"},
        {with([](P& p) {
           p.tokens = 2, p.sequences = 1, p.pages = 30, p.page_size = 16, p.pages_per_seq = 30;
         }),
         "several key blocks", Fill::kSkewed},
        {with([](P& p) { p.tokens = 0; }), "no tokens"},
        {small, "no keys to attend to", Fill::kEmpty},
        {small, "all scores equal", Fill::kAllEqual},
        {with([](P& p) { p.q = kF; }), "NaN here and there", Fill::kSomeNan},
        {with([](P& p) { p.q = kF, p.rank = 3, p.rope = 2, p.nope = 2; }), "infinities here and there",
         Fill::kInfinite},
        {with([](P& p) { p.q = kF; }), "subnormal numbers", Fill::kTiny},
        {with([](P& p) { p.q = kF; }), "scores that overflow", Fill::kHuge},
        {with([](P& p) { p.scale = 40, p.q = kF; }), "softmax concentrated on a few keys"},
        {{.tokens = 1, .sequences = 1, .pages = 5, .page_size = 64, .pages_per_seq = 5},
         "DeepSeek V3 decode, all heads, two splits",
         Fill::kSkewed},
        {{.tokens = 2, .sequences = 2, .heads = 128, .pages = 9, .page_size = 16, .pages_per_seq = 4},
         "DeepSeek V3 decode, all heads of two sequences"},
        {{.tokens = 5, .sequences = 2, .heads = 6, .pages = 9, .page_size = 64, .pages_per_seq = 5},
         "DeepSeek V3, several rows per sequence",
         Fill::kNormal,
         apart},
        {with_tiles([](P& p) { p.tokens = 5, p.heads = 70; }), "tiles, a head group that is not full"},
        {tiled, "tiles, absent pages", Fill::kNormal, apart},
        {with_tiles([](P& p) { p.page_size = 7, p.pages_per_seq = 40, p.pages = 99; }),
         "tiles, pages that no tile size divides"},
        {with_tiles([](P& p) { p.tokens = 2, p.sequences = 1, p.pages = 310, p.pages_per_seq = 310; }),
         "tiles, the largest number of splits per row", Fill::kSkewed},
        {with_tiles([](P& p) { p.pages = 310, p.pages_per_seq = 310; }), "tiles, splits without keys"},
        {with_tiles([](P& p) { p.rank = 256, p.nope = 48, p.rope = 40, p.v_dim = 200, p.tokens = 30; }),
         "tiles, values in more than one pass", Fill::kNormal, apart},
        {with_tiles([](P& p) { p.nope = 256, p.rope = 64, p.tokens = 4; }), "tiles, the widest heads"},
        {with_tiles([](P& p) { p.tokens = 75, p.heads = 2; }), "tiles, prefill", Fill::kNormal, apart},
        {with_tiles([](P& p) { p.tokens = 30, p.heads = 1024, p.pages_per_seq = 256; }),
         "tiles, more rows than fit in the workspace", Fill::kEmpty},
        {with_tiles([](P& p) {
           p.tokens = 12, p.heads = 16, p.rank = 512, p.nope = 32, p.rope = 64, p.pages = 40,
           p.pages_per_seq = 30;
         }),
         "tiles of several rows per sequence", Fill::kNormal, apart},
        {with_tiles(
             [](P& p) { p.tokens = 90, p.sequences = 2, p.heads = 5, p.pages = 40, p.pages_per_seq = 30; }),
         "tiles of several rows, a head count that no tile divides", Fill::kNormal, apart},
        {with_tiles([](P& p) { p.tokens = 300, p.sequences = 290, p.heads = 32, p.pages_per_seq = 3; }),
         "tiles of two rows, more sequences than threads"},
        {with_tiles([](P& p) { p.tokens = 0; }), "tiles, no tokens"},
        {tiled, "tiles, no keys to attend to", Fill::kEmpty},
        {tiled, "tiles, all scores equal", Fill::kAllEqual},
        {with_tiles([](P& p) { p.pages_per_seq = 2; }), "tiles, NaN here and there", Fill::kSomeNan},
        {tiled, "tiles, infinities here and there", Fill::kInfinite},
        {tiled, "tiles, subnormal numbers", Fill::kTiny},
        {tiled, "tiles, scores that overflow", Fill::kHuge},
        {with_tiles([](P& p) { p.scale = 40; }), "tiles, softmax concentrated on a few keys"},
    };
  }

  static void fill(const P& p, Fill fill, HostArgs<LatentAttention>& host, Random& random) {
    const LatentAttention::Args& a = host.args();
    fill_floats(a.q, fill, random);
    // A NaN weight makes its whole head NaN, so only queries and cache rows have NaN.
    fill_floats(a.kv_b, fill == Fill::kSomeNan ? Fill::kNormal : fill, random);
    fill_lengths(p, fill, a, random);
    fill_pages(p, fill, a.page_table, random);
    // Cache positions that no sequence has written hold NaN, which must not reach any output.
    set_each(a.cache, [&](int64_t, int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    const int64_t width = p.rank + p.rope;
    for (int64_t s = 0; s < p.sequences; ++s) {
      const int64_t length = std::min<int64_t>(a.kv_len.as<int32_t>()[s], p.pages_per_seq * p.page_size);
      for (int64_t j = 0; j < length; ++j) {
        const int64_t page = a.page_table.as<int32_t>()[s * p.pages_per_seq + j / p.page_size];
        if (page < 0 || page >= p.pages) continue;
        void* row = a.cache.as<char>() + bytes_of(p.q, (page * p.page_size + j % p.page_size) * width);
        // If every row had a NaN, all results would be NaN, so only some rows have one.
        const bool plain = fill == Fill::kSomeNan && random.integer(0, 15) != 0;
        fill_floats(make_tensor(row, p.q, {width}), plain ? Fill::kNormal : fill, random);
      }
    }
  }

  static P random(Random& r) {
    P p = any_problem(r);
    if (coin(r)) return p;
    // Mostly problems that tensor cores accept.
    p.rank = one_of(r, {64, 128, 256});
    p.nope = 16 * r.integer(1, 4), p.rope = 8 * r.integer(1, 9);
    p.q = p.w = DType::kBF16;
    return p;
  }

 private:
  static P any_problem(Random& r) {
    return {.tokens = r.integer(0, 12),
            .sequences = r.integer(1, 4),
            .heads = r.integer(0, 4),
            .rank = coin(r) ? 8 * r.integer(1, 6) : r.integer(0, 50),
            .nope = r.integer(0, 40),
            .rope = r.integer(0, 20),
            .v_dim = r.integer(0, 30),
            .pages = r.integer(1, 30),
            .page_size = one_of(r, {1, 3, 8, 16, 50}),
            .pages_per_seq = r.integer(1, 8),
            .scale = one_of(r, {1, 2, 0}) * 0.25,
            .q = any_float(r),
            .w = any_float(r)};
  }

  // Lengths are random: there are sequences without rows, rows without a sequence, sequences with more rows
  // than keys, and missing keys. kSkewed: all rows are the last rows of the last sequence, whose context is
  // long.
  static void fill_lengths(const P& p, Fill fill, const LatentAttention::Args& a, Random& random) {
    std::vector<int64_t> cuts;
    for (int64_t s = 0; s <= p.sequences; ++s) cuts.push_back(random.integer(0, p.tokens));
    std::sort(cuts.begin(), cuts.end());
    if (coin(random)) cuts.front() = 0;
    if (coin(random)) cuts.back() = p.tokens;
    const int64_t room = p.pages_per_seq * p.page_size;
    for (int64_t s = 0; s <= p.sequences; ++s) {
      const bool skewed = fill == Fill::kSkewed;
      a.q_begin.as<int32_t>()[s] = static_cast<int32_t>(!skewed           ? cuts[static_cast<size_t>(s)]
                                                        : s < p.sequences ? 0
                                                                          : p.tokens);
      if (s == p.sequences) break;
      const int64_t any = random.integer(0, 5) == 0 ? random.integer(0, 3) : random.integer(0, room);
      a.kv_len.as<int32_t>()[s] = static_cast<int32_t>(skewed ? room : any);
    }
  }
  // Pages in random order, reused when they run out. Some sequences have absent pages.
  static void fill_pages(const P& p, Fill fill, const Tensor& table, Random& random) {
    std::vector<int64_t> order(static_cast<size_t>(p.pages));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    std::vector<bool> holes;
    for (int64_t s = 0; s < p.sequences; ++s) holes.push_back(coin(random));
    size_t next = 0;
    set_each(table, [&](int64_t s, int64_t) -> double {
      if (fill == Fill::kEmpty)
        return static_cast<double>(one_of(random, {-1, p.pages, INT32_MIN, INT32_MAX}));
      const int64_t page = order[next++ % order.size()];
      const bool hole = fill != Fill::kSkewed && holes[static_cast<size_t>(s)] && random.integer(0, 4) == 0;
      return static_cast<double>(hole ? one_of(random, {-1, p.pages}) : page);
    });
  }
};

}  // namespace sluice::test
