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
        {small, "a multiple of nothing", Fill::kNormal, apart},
        {with([](P& p) { p.window = 5, p.sinks = true, p.s = p.q = kF; }),
         "f32, a window smaller than a block", Fill::kNormal, apart},
        {with([](P& p) { p.kv_heads = 6, p.head_dim = 37, p.window = 70; }), "one head for each kv head"},
        {with([](P& p) { p.heads = 45, p.kv_heads = 1, p.head_dim = 80, p.tokens = 5; }),
         "more heads than an item takes"},
        {with([](P& p) { p.head_dim = 1, p.page_size = 1, p.pages_per_seq = 70, p.pages = 300; }),
         "the smallest pages"},
        {with([](P& p) { p.head_dim = 512, p.tokens = 6, p.q = kF; }), "the widest head"},
        {with([](P& p) {
           p.tokens = 1, p.sequences = 1, p.pages = 45, p.page_size = 64, p.pages_per_seq = 42;
         }),
         "a context of several parts", Fill::kSkewed},
        {with([](P& p) {
           p.tokens = 5, p.sequences = 1, p.pages = 45, p.page_size = 64, p.pages_per_seq = 42,
           p.window = 1200, p.sinks = true, p.q = kF;
         }),
         "parts that some rows do not see", Fill::kSkewed},
        {with([](P& p) {
           p.tokens = 8, p.sequences = 1, p.heads = 2, p.kv_heads = 1, p.pages = 45, p.page_size = 64,
           p.pages_per_seq = 1 << 18;
         }),
         "a table so long that items walk all parts", Fill::kSkewed},
        {with([](P& p) { p.tokens = 0; }), "no tokens"},
        {small, "nothing to attend to", Fill::kEmpty},
        {with([](P& p) { p.sinks = true; }), "nothing but sinks", Fill::kEmpty},
        {small, "all scores equal", Fill::kAllEqual},
        {with([](P& p) { p.sinks = true, p.q = kF; }), "NaN here and there", Fill::kSomeNan},
        {with([](P& p) { p.sinks = true, p.q = kF, p.head_dim = 3; }), "infinities here and there",
         Fill::kInfinite},
        {with([](P& p) { p.q = kF; }), "below the smallest normal", Fill::kTiny},
        {with([](P& p) { p.q = kF; }), "scores that overflow", Fill::kHuge},
        {with([](P& p) { p.scale = 40, p.q = kF; }), "a few weights take all"},
    };
  }

  static void fill(const P& p, Fill fill, HostArgs<Attention>& host, Random& random) {
    const Attention::Args& a = host.args();
    fill_floats(a.q, fill, random);
    fill_floats(a.sinks, fill, random, 2);
    fill_lengths(p, fill, a, random);
    fill_pages(p, fill, a.page_table, random);
    // What no sequence has written yet is NaN: it must not reach anybody.
    const double garbage = std::numeric_limits<double>::quiet_NaN();
    set_each(a.k_cache, [&](int64_t, int64_t) { return garbage; });
    set_each(a.v_cache, [&](int64_t, int64_t) { return garbage; });
    for (int64_t s = 0; s < p.sequences; ++s) {
      const int64_t length = std::min<int64_t>(a.kv_len.as<int32_t>()[s], p.pages_per_seq * p.page_size);
      for (int64_t j = 0; j < length; ++j) {
        const int64_t page = a.page_table.as<int32_t>()[s * p.pages_per_seq + j / p.page_size];
        if (page < 0 || page >= p.pages) continue;
        for (const Tensor* cache : {&a.k_cache, &a.v_cache}) {
          const int64_t width = p.kv_heads * p.head_dim;
          void* row = cache->as<char>() + bytes_of(p.q, (page * p.page_size + j % p.page_size) * width);
          fill_floats(make_tensor(row, p.q, {width}), fill, random);
        }
      }
    }
  }

  static P random(Random& r) {
    const int64_t kv_heads = r.integer(1, 3);
    return {.tokens = r.integer(0, 30),
            .sequences = r.integer(1, 5),
            .heads = kv_heads * r.integer(1, 5) + (r.integer(0, 15) == 0),
            .kv_heads = kv_heads,
            .head_dim = coin(r) ? 8 * r.integer(1, 6) : r.integer(0, 50),
            .pages = r.integer(1, 30),
            .page_size = one_of(r, {1, 3, 8, 16, 50}),
            .pages_per_seq = r.integer(1, 12),
            .window = coin(r) ? 0 : r.integer(-1, 100),
            .scale = one_of(r, {1, 2, 0}) * 0.25,
            .q = any_float(r),
            .s = any_float(r),
            .sinks = coin(r)};
  }

 private:
  // kSkewed: all rows are the last of one long sequence. Otherwise sequences without rows, rows without a
  // sequence, more rows than keys and no keys at all come up by chance.
  static void fill_lengths(const P& p, Fill fill, const Attention::Args& a, Random& random) {
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
      const int64_t length = skewed ? std::min(room, p.pages * p.page_size) - 190 : any;
      a.kv_len.as<int32_t>()[s] = static_cast<int32_t>(std::max<int64_t>(0, length));
    }
  }
  // A random order of pages, used anew when they run out (sequences may share); absent ones in some
  // sequences.
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
