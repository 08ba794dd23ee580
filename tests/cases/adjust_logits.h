#pragma once
#include <set>

#include "harness/cases.h"
#include "ops/adjust_logits.h"

namespace sluice::test {

template <>
struct Suite<AdjustLogits> {
  static std::vector<Case<AdjustLogits>> cases() {
    const auto apart = Spread::kStridedRows;
    constexpr auto kBack = AdjustWay::kRestore;
    return {
        {{.entries = 700, .rows = 3, .vocab = 2003}, "many entries per row"},
        {{.entries = 700, .rows = 3, .vocab = 2003, .way = kBack}, "restores logits", Fill::kNormal, apart},
        {{.entries = 400, .rows = 37, .vocab = 101}, "strided rows", Fill::kNormal, apart},
        {{.entries = 5, .rows = 1, .vocab = 201088}, "few entries in gpt-oss's vocabulary"},
        {{.entries = 200, .rows = 2, .vocab = 50}, "more entries than logits"},
        {{.entries = 300, .rows = 4, .vocab = 300}, "no entry is valid", Fill::kEmpty},
        {{.entries = 300, .rows = 4, .vocab = 300, .way = kBack},
         "restores logits, no entry is valid",
         Fill::kEmpty},
        {{.entries = 300, .rows = 4, .vocab = 300}, "-0 and +0", Fill::kZerosMixed},
        {{.entries = 300, .rows = 4, .vocab = 300}, "NaN stays NaN", Fill::kSomeNan},
        {{.entries = 300, .rows = 4, .vocab = 300, .way = kBack},
         "restores logits, NaN stays NaN",
         Fill::kSomeNan},
        {{.entries = 300, .rows = 4, .vocab = 300}, "infinities stay", Fill::kInfinite},
        {{.entries = 300, .rows = 4, .vocab = 300}, "small numbers", Fill::kTiny},
        {{.entries = 300, .rows = 4, .vocab = 300}, "large numbers", Fill::kHuge},
        {{.entries = 0, .rows = 4, .vocab = 300}, "no entries"},
        {{.entries = 3, .rows = 0, .vocab = 300}, "no rows, so no entry is valid"},
    };
  }
  static void fill(const AdjustLogits::Problem& p, Fill fill, HostArgs<AdjustLogits>& host, Random& random) {
    const AdjustLogits::Args& a = host.args();
    fill_floats(a.logits, fill, random, 3);
    // Each entry names a different logit; some entries name logits that do not exist.
    std::set<int64_t> named;
    for (int64_t e = 0; e < p.entries; ++e) {
      int64_t row = random.integer(0, std::max<int64_t>(p.rows - 1, 0)), id = random.integer(0, p.vocab - 1);
      if (fill == Fill::kEmpty || random.integer(0, 9) == 0 || !named.insert(row * p.vocab + id).second)
        (coin(random) ? row : id) = coin(random) ? INT32_MIN : -1;
      if (row < 0 && coin(random)) row = one_of(random, {p.rows, INT32_MAX});
      if (id < 0 && coin(random)) id = one_of(random, {p.vocab, INT32_MAX});
      a.row.as<int32_t>()[e] = static_cast<int32_t>(row);
      a.id.as<int32_t>()[e] = static_cast<int32_t>(id);
    }
    if (p.way == AdjustWay::kRestore) return fill_floats(a.raw, fill, random, 3);
    const auto pick = [&](const Tensor& t, std::initializer_list<double> values) {
      set_each(t, [&, values](int64_t, int64_t) {
        return one_of(random, std::span<const double>(values.begin(), values.size()));
      });
    };
    const double nan = std::nan("");
    pick(a.count, {0, 0, 1, 1, 2, 7, 5000, -1});
    pick(a.in_prompt, {0, 0, 1, 255});
    pick(a.logit_bias, {0, 0, 0, 1.5, -100, 100, nan});
    pick(a.repetition, {1, 1, 1.3, 0.7, 2, nan});
    pick(a.frequency, {0, 0, 0.1, -0.7, 2, nan});
    pick(a.presence, {0, 0, 0.3, -2, nan});
  }
  static AdjustLogits::Problem random(Random& r) {
    return {.entries = r.integer(0, 400),
            .rows = r.integer(0, 20),
            .vocab = coin(r) ? r.integer(0, 100) : r.integer(1, 3000),
            .way = coin(r) ? AdjustWay::kApply : AdjustWay::kRestore};
  }
};

}  // namespace sluice::test
