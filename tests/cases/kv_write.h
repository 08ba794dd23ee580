#pragma once
#include <numeric>

#include "harness/cases.h"
#include "ops/kv_write.h"

namespace sluice::test {

// A number halfway between two adjacent e4m3 numbers, or one of its two f32 neighbours.
inline double near_tie(Random& random) {
  const auto code = static_cast<uint8_t>(random.integer(0, 0x7d));
  const float tie = (to_float(E4M3{code}) + to_float(E4M3{static_cast<uint8_t>(code + 1)})) / 2;
  const float off[] = {tie, std::nextafter(tie, 0.f), std::nextafter(tie, 500.f)};
  return std::copysign(off[random.integer(0, 2)], coin(random) ? 1 : -1);
}

inline void fill_kv_write(const KvWrite::Problem& p, Fill fill, const KvWrite::Args& args, Random& random) {
  for (const Tensor* t : {&args.k, &args.v, &args.k_cache, &args.v_cache}) fill_floats(*t, fill, random);
  const bool ties = p.cache == CacheType::kE4M3 && fill == Fill::kZerosMixed;
  for (const Tensor* t : {&args.k, &args.v})
    if (ties && t->present()) set_each(*t, [&](int64_t, int64_t) { return near_tie(random); });
  std::vector<int64_t> slots(static_cast<size_t>(p.pages * p.page_size));
  std::iota(slots.begin(), slots.end(), 0);
  for (size_t i = slots.size(); i > 1; --i)
    std::swap(slots[i - 1], slots[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
  const int64_t first = p.pages * p.page_size;
  set_each(args.slot_of, [&](int64_t, int64_t) -> double {
    const bool none = fill == Fill::kEmpty || slots.empty() || random.integer(0, 7) == 0;
    if (none) return static_cast<double>(one_of(random, {-1, first, INT32_MIN, INT32_MAX}));
    const int64_t slot = slots.back();
    slots.pop_back();
    return static_cast<double>(slot);
  });
}

template <>
struct Suite<KvWrite> {
  static std::vector<Case<KvWrite>> cases() {
    constexpr DType kF = DType::kF32;
    constexpr CacheType kNarrow = CacheType::kE4M3;
    const auto apart = Spread::kStridedRows;
    return {
        {{.tokens = 3, .kv_heads = 8, .head_dim = 64, .pages = 5, .page_size = 16}, "gpt-oss decode"},
        {{.tokens = 41, .kv_heads = 3, .head_dim = 17, .pages = 7, .page_size = 13, .kv = kF},
         "sizes that no tile divides",
         Fill::kNormal,
         apart},
        {{.tokens = 12, .kv_heads = 2, .head_dim = 32, .pages = 12, .page_size = 1},
         "one slot per page, every slot written"},
        {{.tokens = 30, .kv_heads = 2, .head_dim = 8, .pages = 2, .page_size = 8}, "more tokens than slots"},
        {{.tokens = 5, .kv_heads = 1, .head_dim = 1, .pages = 1, .page_size = 1}, "the smallest sizes"},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4},
         "every slot is out of range",
         Fill::kEmpty},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4, .kv = kF},
         "NaN is stored",
         Fill::kSomeNan,
         apart},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4, .kv = kF},
         "infinity is stored",
         Fill::kInfinite},
        {{.tokens = 11, .kv_heads = 1, .head_dim = 576, .pages = 3, .page_size = 8, .values = false},
         "DeepSeek's latents: keys without values",
         Fill::kNormal,
         apart},
        {{.tokens = 0, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4}, "no tokens"},
        {{.tokens = 30, .kv_heads = 8, .head_dim = 64, .pages = 5, .page_size = 16, .cache = kNarrow},
         "gpt-oss, e4m3"},
        {{.tokens = 41,
          .kv_heads = 3,
          .head_dim = 17,
          .pages = 7,
          .page_size = 13,
          .kv = kF,
          .cache = kNarrow},
         "e4m3, sizes that no tile divides",
         Fill::kNormal,
         apart},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4, .cache = kNarrow},
         "NaN is stored in e4m3",
         Fill::kSomeNan,
         apart},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4, .kv = kF, .cache = kNarrow},
         "infinity saturates to the largest e4m3 number",
         Fill::kInfinite},
        {{.tokens = 9, .kv_heads = 2, .head_dim = 16, .pages = 3, .page_size = 4, .kv = kF, .cache = kNarrow},
         "large numbers saturate to the largest e4m3 number",
         Fill::kHuge},
        {{.tokens = 256,
          .kv_heads = 2,
          .head_dim = 256,
          .pages = 32,
          .page_size = 8,
          .kv = kF,
          .cache = kNarrow},
         "every rounding tie of e4m3 and its f32 neighbours",
         Fill::kZerosMixed},
        {{.tokens = 11,
          .kv_heads = 1,
          .head_dim = 576,
          .pages = 3,
          .page_size = 8,
          .cache = kNarrow,
          .values = false},
         "latents in e4m3"},
    };
  }
  static void fill(const KvWrite::Problem& p, Fill fill, HostArgs<KvWrite>& host, Random& random) {
    fill_kv_write(p, fill, host.args(), random);
  }
  static KvWrite::Problem random(Random& r) {
    return {.tokens = r.integer(0, 40),
            .kv_heads = r.integer(0, 5),
            .head_dim = r.integer(1, 70),
            .pages = r.integer(1, 9),
            .page_size = r.integer(1, 20),
            .kv = any_float(r),
            .cache = coin(r) ? CacheType::kE4M3 : CacheType::kSame,
            .values = coin(r)};
  }
};

}  // namespace sluice::test
