#pragma once
#include <algorithm>
#include <numeric>

#include "harness/cases.h"
#include "ops/attention.h"

namespace sluice::test {

template <>
struct Suite<Attention> {
  using P = Attention::Problem;

  static std::vector<Case<Attention>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    const P small{.tokens = 23,
                  .sequences = 4,
                  .heads = 6,
                  .kv_heads = 2,
                  .head_dim = 24,
                  .pages = 30,
                  .page_size = 7,
                  .pages_per_seq = 11,
                  .scale = 0.2};
    const auto with = [&](auto change) {
      P p = small;
      change(p);
      return p;
    };
    return {
        {{.tokens = 3, .sequences = 3, .pages = 48, .pages_per_seq = 16, .window = 128, .sinks = true},
         "gpt-oss decode, a sliding layer"},
        {{.tokens = 2, .sequences = 2, .pages = 48, .pages_per_seq = 20, .sinks = true},
         "gpt-oss decode, a full layer"},
        {{.tokens = 40, .sequences = 1, .heads = 16, .kv_heads = 2, .pages = 8, .pages_per_seq = 8},
         "prefill"},
        {small, "sizes that no tile divides", Fill::kNormal, apart},
        {with([](P& p) { p.window = 5, p.sinks = true, p.s = p.q = kF; }),
         "f32, a window smaller than a block", Fill::kNormal, apart},
        {with([](P& p) { p.kv_heads = 6, p.head_dim = 37, p.window = 70; }), "one head per kv head"},
        {with([](P& p) { p.heads = 45, p.kv_heads = 1, p.head_dim = 80, p.tokens = 5; }),
         "more heads than a work item can process"},
        {with([](P& p) { p.head_dim = 1, p.page_size = 1, p.pages_per_seq = 70, p.pages = 300; }),
         "the smallest pages"},
        {with([](P& p) { p.head_dim = 512, p.tokens = 6, p.q = kF; }), "the widest head"},
        {with([](P& p) {
           p.tokens = 1, p.sequences = 1, p.pages = 45, p.page_size = 64, p.pages_per_seq = 42;
         }),
         "a context split into several parts", Fill::kSkewed},
        {with([](P& p) {
           p.tokens = 5, p.sequences = 1, p.pages = 45, p.page_size = 64, p.pages_per_seq = 42,
           p.window = 1200, p.sinks = true, p.q = kF;
         }),
         "parts outside the windows of some rows", Fill::kSkewed},
        {with([](P& p) {
           p.tokens = 8, p.sequences = 1, p.heads = 2, p.kv_heads = 1, p.pages = 45, p.page_size = 64,
           p.pages_per_seq = 1 << 18;
         }),
         "a page table so long that each work item processes all parts", Fill::kSkewed},
        {with([](P& p) { p.tokens = 0; }), "no tokens"},
        {small, "no keys to attend to", Fill::kEmpty},
        {with([](P& p) { p.sinks = true; }), "no keys, only sinks", Fill::kEmpty},
        {small, "all scores equal", Fill::kAllEqual},
        {with([](P& p) { p.sinks = true, p.q = kF; }), "NaN here and there", Fill::kSomeNan},
        {with([](P& p) { p.sinks = true, p.q = kF, p.head_dim = 3; }), "infinities here and there",
         Fill::kInfinite},
        {with([](P& p) { p.q = kF; }), "subnormal numbers", Fill::kTiny},
        {with([](P& p) { p.q = kF; }), "scores that overflow", Fill::kHuge},
        {with([](P& p) { p.scale = 40, p.q = kF; }), "softmax concentrated on a few keys"},
        {tiled(7, 5, 1, 0), "at most one row per sequence"},
        {tiled(7, 5, 1, 40), "a window that crosses pages", Fill::kNormal, apart},
        {tiled(9, 3, 4, 0), "a few rows per sequence", Fill::kNormal, apart},
        {with_heads(tiled(5, 3, 1, 0), 3, 3, 64), "one query head per kv head"},
        {with_heads(tiled(6, 3, 0, 50), 8, 2, 128), "four query heads per kv head, wide heads"},
        {with_heads(tiled(3, 2, 1, 0), 32, 2, 64), "sixteen query heads per kv head"},
        {with_heads(tiled(3, 2, 1, 0), 80, 1, 128), "query heads of one kv head in several tiles",
         Fill::kSkewed},
        {tiled(3, 1, 0, 0, 1200), "one long context, three rows", Fill::kSkewed},
        {tiled(1, 1, 1, 0, 1700), "one long context, one row", Fill::kSkewed},
        {with_heads(tiled(1, 1, 1, 0, 9000), 2, 1, 64), "more pages than a warp reads at once",
         Fill::kSkewed},
        {tiled(210, 1, 0, 0), "the last rows of a prompt", Fill::kSkewed},
        {tiled(210, 1, 0, 100), "the same with a window", Fill::kSkewed},
        {with_heads(tiled(150, 1, 0, 0), 4, 2, 128), "a prompt with wide heads", Fill::kSkewed},
        {with_scale(tiled(260, 1, 0, 0, 900), 2), "scores that rise from tile to tile", Fill::kSkewed},
        {with_scale(tiled(260, 1, 0, 300, 900), 30), "scores that rise by more than the range of f32",
         Fill::kSkewed},
        {with_scale(with_heads(tiled(150, 1, 0, 0, 500), 4, 2, 128), 20), "the same with wide heads",
         Fill::kSkewed},
        {tiled(160, 5, 0, 0), "prefill and decode in one step"},
        {tiled(160, 5, 0, 70), "prefill and decode in one step, with a window"},
        {tiled(90, 3, 0, 33), "NaN here and there, in bf16", Fill::kSomeNan},
        {tiled(90, 3, 0, 33), "infinities here and there, in bf16", Fill::kInfinite},
        {tiled(7, 5, 1, 0), "one row per sequence, infinities here and there, in bf16", Fill::kInfinite},
        {tiled(9, 3, 4, 0), "a few rows per sequence, infinities here and there, in bf16", Fill::kInfinite},
        {with_heads(tiled(210, 1, 0, 100), 32, 16, 64), "a NaN in about every second tile of values",
         Fill::kRareNan},
        {tiled(90, 3, 0, 0), "all scores equal, in bf16", Fill::kAllEqual},
        {tiled(40, 3, 0, 0), "no keys to attend to, in bf16", Fill::kEmpty},
        {narrow(
             {.tokens = 3, .sequences = 3, .pages = 48, .pages_per_seq = 16, .window = 128, .sinks = true}),
         "e4m3: gpt-oss decode, a sliding layer"},
        {narrow(with([](P& p) { p.head_dim = 37, p.window = 70; })), "e4m3: sizes that no tile divides",
         Fill::kNormal, apart},
        {narrow(with([](P& p) { p.sinks = true, p.q = kF; })), "e4m3 and f32, NaN here and there",
         Fill::kSomeNan},
        {narrow(with([](P& p) { p.head_dim = 512, p.tokens = 6, p.q = kF; })), "e4m3: the widest head"},
        {narrow(tiled(3, 1, 0, 0, 1200)), "e4m3: one long context, three rows", Fill::kSkewed},
        {narrow(tiled(7, 5, 1, 40)), "e4m3: a window that crosses pages", Fill::kNormal, apart},
        {narrow(tiled(9, 3, 4, 0)), "e4m3: a few rows per sequence", Fill::kNormal, apart},
        {narrow(with_heads(tiled(6, 3, 0, 50), 8, 2, 128)), "e4m3: four query heads per kv head, wide heads"},
        {narrow(with_heads(tiled(3, 2, 1, 0), 80, 1, 128)),
         "e4m3: query heads of one kv head in several tiles", Fill::kSkewed},
        {narrow(tiled(160, 5, 0, 70)), "e4m3: prefill and decode in one step, with a window"},
        {narrow(tiled(90, 3, 0, 33)), "e4m3: NaN here and there", Fill::kSomeNan},
        {narrow(tiled(90, 3, 0, 33)), "e4m3: infinite queries, saturated keys and values", Fill::kInfinite},
        {narrow(tiled(20, 3, 0, 0)), "e4m3: the largest keys and values", Fill::kHuge},
        {narrow(tiled(20, 3, 0, 0)), "e4m3: the smallest queries, keys of zero", Fill::kTiny},
    };
  }

  static void fill(const P& p, Fill fill, HostArgs<Attention>& host, Random& random) {
    const Attention::Args& a = host.args();
    for (int64_t t = 0; t < p.tokens; ++t)
      for (int64_t head = 0; head < p.heads; ++head) {
        void* at = a.q.as<char>() + bytes_of(p.q, t * a.q.stride[0] + head * p.head_dim);
        const Fill of_head = of_scores(fill, head / (p.heads / p.kv_heads));
        fill_floats(make_tensor(at, p.q, {p.head_dim}), of_head, random);
      }
    fill_floats(a.sinks, fill, random, 2);
    fill_lengths(p, fill, a, random);
    fill_pages(p, fill, a.page_table, random);
    // Cache positions that no sequence has written hold NaN, which must not reach any output.
    const double garbage = std::numeric_limits<double>::quiet_NaN();
    set_each(a.k_cache, [&](int64_t, int64_t) { return garbage; });
    set_each(a.v_cache, [&](int64_t, int64_t) { return garbage; });
    for (int64_t s = 0; s < p.sequences; ++s) {
      const int64_t length = std::min<int64_t>(a.kv_len.as<int32_t>()[s], p.pages_per_seq * p.page_size);
      for (int64_t j = 0; j < length; ++j) {
        const int64_t page = a.page_table.as<int32_t>()[s * p.pages_per_seq + j / p.page_size];
        if (page < 0 || page >= p.pages) continue;
        for (const Tensor* cache : {&a.k_cache, &a.v_cache}) {
          for (int64_t head = 0; head < p.kv_heads; ++head) {
            const int64_t row = (page * p.kv_heads + head) * p.page_size + j % p.page_size;
            void* at = cache->as<char>() + bytes_of(cache->dtype, row * p.head_dim);
            const bool values = cache == &a.v_cache;
            fill_floats(make_tensor(at, cache->dtype, {p.head_dim}), values ? fill : of_scores(fill, head),
                        random);
          }
        }
      }
    }
  }

  static P random(Random& r) {
    const int64_t kv_heads = r.integer(1, 3);
    P p{.tokens = r.integer(0, 30),
        .sequences = r.integer(1, 5),
        .heads = kv_heads * r.integer(1, 5) + (r.integer(0, 15) == 0),
        .kv_heads = kv_heads,
        .head_dim = coin(r) ? 8 * r.integer(1, 6) : r.integer(0, 50),
        .pages = r.integer(1, 30),
        .page_size = one_of(r, {1, 3, 8, 16, 50}),
        .pages_per_seq = r.integer(1, 12),
        .window = coin(r) ? 0 : r.integer(-1, 100),
        .rows_max = coin(r) ? 0 : r.integer(0, 5),
        .scale = one_of(r, {1, 2, 0}) * 0.25,
        .q = any_float(r),
        .s = any_float(r),
        .sinks = coin(r)};
    p.settled = coin(r);
    if (coin(r)) p.cache = CacheType::kE4M3;
    if (!coin(r)) return p;
    // Problems that tensor cores accept.
    p.q = DType::kBF16;
    p.head_dim = one_of(r, {64, 64, 128});
    p.heads = kv_heads * one_of(r, {1, 2, 4, 8, 8, 12, 16});
    p.page_size = one_of(r, {16, 16, 32, 64});
    if (r.integer(0, 3) == 0) p.tokens = r.integer(0, 120);
    return p;
  }

 private:
  // Problems that tensor cores accept.
  static P tiled(int64_t tokens, int64_t sequences, int64_t rows_max, int64_t window,
                 int64_t positions = 300) {
    const int64_t pages = (positions + 15) / 16;
    return {.tokens = tokens,
            .sequences = sequences,
            .heads = 16,
            .kv_heads = 2,
            .pages = sequences * pages + 20,
            .pages_per_seq = pages + 13,
            .window = window,
            .rows_max = rows_max,
            .sinks = true};
  }
  static P narrow(P p) { return p.cache = CacheType::kE4M3, p; }
  static P with_heads(P p, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    p.heads = heads, p.kv_heads = kv_heads, p.head_dim = head_dim;
    return p;
  }
  static P with_scale(P p, double scale) { return p.scale = scale, p; }
  // In the first kv head only values hold NaN and infinities. In the other heads nearly every score has one,
  // which would hide errors in values.
  static Fill of_scores(Fill fill, int64_t kv_head) {
    if (fill == Fill::kRareNan) return Fill::kNormal;
    const bool values_alone = fill == Fill::kSomeNan || fill == Fill::kInfinite;
    return values_alone && kv_head == 0 ? Fill::kNormal : fill;
  }
  // kSkewed, kRareNan: all rows are the last rows of one long sequence. Other fills choose random lengths:
  // there are sequences without rows, rows without a sequence, sequences with more rows than keys, and
  // missing keys.
  static void fill_lengths(const P& p, Fill fill, const Attention::Args& a, Random& random) {
    std::vector<int64_t> cuts;
    for (int64_t s = 0; s <= p.sequences; ++s) cuts.push_back(random.integer(0, p.tokens));
    std::sort(cuts.begin(), cuts.end());
    if (coin(random)) cuts.front() = 0;
    if (coin(random)) cuts.back() = p.tokens;
    if (p.rows_max > 0)
      for (size_t s = 1; s < cuts.size(); ++s) cuts[s] = std::min(cuts[s], cuts[s - 1] + p.rows_max);
    const int64_t room = p.pages_per_seq * p.page_size;
    for (int64_t s = 0; s <= p.sequences; ++s) {
      const bool skewed = fill == Fill::kSkewed || fill == Fill::kRareNan;
      const int64_t cut = !skewed           ? cuts[static_cast<size_t>(s)]
                          : s < p.sequences ? 0
                          : p.rows_max > 0  ? std::min(p.tokens, p.rows_max)
                                            : p.tokens;
      a.q_begin.as<int32_t>()[s] = static_cast<int32_t>(cut);
      if (s == p.sequences) break;
      const int64_t any = random.integer(0, 5) == 0 ? random.integer(0, 3) : random.integer(0, room);
      const int64_t length = skewed ? std::min(room, p.pages * p.page_size) - 190 : any;
      a.kv_len.as<int32_t>()[s] = static_cast<int32_t>(std::max<int64_t>(0, length));
    }
  }
  // Pages in random order, reused when they run out, so sequences may share pages. Some sequences have absent
  // pages.
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
