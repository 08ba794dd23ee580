#pragma once
#include <set>

#include "harness/cases.h"
#include "ops/mask_logits.h"

namespace sluice::test {

template <>
struct Suite<MaskLogits> {
  static std::vector<Case<MaskLogits>> cases() {
    const auto apart = Spread::kStridedRows;
    constexpr auto kBack = MaskWay::kRestore;
    return {
        {{.masks = 2, .rows = 3, .vocab = 2003}, "masks for some of the rows"},
        {{.masks = 2, .rows = 3, .vocab = 2003, .way = kBack}, "restores logits", Fill::kNormal, apart},
        {{.masks = 37, .rows = 37, .vocab = 101}, "strided rows", Fill::kNormal, apart},
        {{.masks = 1, .rows = 1, .vocab = 201088}, "gpt-oss's vocabulary"},
        {{.masks = 4, .rows = 9, .vocab = 1024}, "a whole number of words and blocks"},
        {{.masks = 4, .rows = 9, .vocab = 1025}, "one token more than whole words"},
        {{.masks = 5, .rows = 4, .vocab = 300}, "every row is out of range", Fill::kEmpty},
        {{.masks = 5, .rows = 4, .vocab = 300, .way = kBack},
         "restores logits, every row is out of range",
         Fill::kEmpty},
        {{.masks = 3, .rows = 4, .vocab = 300}, "-0 and +0", Fill::kZerosMixed},
        {{.masks = 3, .rows = 4, .vocab = 300}, "NaN stays NaN", Fill::kSomeNan},
        {{.masks = 3, .rows = 4, .vocab = 300, .way = kBack},
         "restores logits, NaN stays NaN",
         Fill::kSomeNan},
        {{.masks = 3, .rows = 4, .vocab = 300}, "infinities stay", Fill::kInfinite},
        {{.masks = 3, .rows = 4, .vocab = 1}, "one token"},
        {{.masks = 0, .rows = 4, .vocab = 300}, "no masks"},
        {{.masks = 3, .rows = 0, .vocab = 300}, "no rows, so every mask is out of range"},
    };
  }
  static void fill(const MaskLogits::Problem& p, Fill fill, HostArgs<MaskLogits>& host, Random& random) {
    const MaskLogits::Args& a = host.args();
    fill_floats(a.logits, fill, random, 3);
    // Each mask names a different row; some masks name rows that do not exist.
    std::set<int64_t> named;
    for (int64_t m = 0; m < p.masks; ++m) {
      int64_t row = random.integer(0, std::max<int64_t>(p.rows - 1, 0));
      if (p.rows == 0 || fill == Fill::kEmpty || random.integer(0, 9) == 0 || !named.insert(row).second)
        row = one_of(random, {-1, INT32_MIN, p.rows, INT32_MAX});
      a.row.as<int32_t>()[m] = static_cast<int32_t>(row);
    }
    if (p.way == MaskWay::kRestore) return fill_floats(a.raw, fill, random, 3);
    for (int64_t m = 0; m < p.masks; ++m) {
      const int64_t kind = random.integer(0, 3);  // tokens allowed: all, none, half, few
      for (int64_t word = 0; word < p.words(); ++word) {
        const auto some = static_cast<uint32_t>(random.integer(0, UINT32_MAX));
        const uint32_t bits = kind == 0   ? ~0u
                              : kind == 1 ? 0u
                              : kind == 2
                                  ? some
                                  : some & static_cast<uint32_t>(random.integer(0, UINT32_MAX)) & 0x80000011u;
        a.allowed.as<uint32_t>()[m * p.words() + word] = bits;
      }
    }
  }
  static MaskLogits::Problem random(Random& r) {
    return {.masks = r.integer(0, 20),
            .rows = r.integer(0, 20),
            .vocab = coin(r) ? r.integer(1, 100) : r.integer(1, 3000),
            .way = coin(r) ? MaskWay::kApply : MaskWay::kRestore};
  }
};

}  // namespace sluice::test
