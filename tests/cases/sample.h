#pragma once
#include "harness/cases.h"
#include "ops/sample.h"

namespace sluice::test {

template <>
struct Suite<Sample> {
  static std::vector<Case<Sample>> cases() {
    constexpr DType kB = DType::kBF16;
    const auto apart = Spread::kStridedRows;
    return {
        {{.rows = 3, .vocab = 201088}, "gpt-oss's vocabulary"},
        {{.rows = 67, .vocab = 1003}, "sizes that no tile divides", Fill::kNormal, apart},
        {{.rows = 40, .vocab = 517, .logits = kB}, "bf16, which has ties", Fill::kNormal, apart},
        {{.rows = 9, .vocab = 8193 + 8192}, "one token more than whole chunks"},
        {{.rows = 12, .vocab = 1}, "one token"},
        {{.rows = 60, .vocab = 3000}, "all equal: more tokens than the first pass selects", Fill::kAllEqual},
        {{.rows = 30, .vocab = 100}, "-0 and +0 tie", Fill::kZerosMixed},
        {{.rows = 40, .vocab = 100}, "NaN is never sampled", Fill::kSomeNan},
        {{.rows = 40, .vocab = 37, .logits = kB}, "+inf is greedy, -inf is never sampled", Fill::kInfinite},
        {{.rows = 20, .vocab = 100}, "no token can be sampled", Fill::kEmpty},
        {{.rows = 1000, .vocab = 300},
         "one token has all probability, or half of the tokens are far less likely",
         Fill::kSkewed},
        {{.rows = 20, .vocab = 300}, "logits that hardly differ", Fill::kTiny},
        {{.rows = 20, .vocab = 300}, "logits that overflow", Fill::kHuge},
        {{.rows = 0, .vocab = 300}, "no rows"},
        {{.rows = 20, .vocab = 3000, .greedy = true}, "every row is greedy"},
        {{.rows = 20, .vocab = 300, .logits = kB, .greedy = true}, "greedy, NaN", Fill::kSomeNan},
    };
  }
  static void fill(const Sample::Problem& p, Fill fill, HostArgs<Sample>& host, Random& random) {
    const Sample::Args& a = host.args();
    fill_floats(a.logits, fill, random, 3);
    if (fill == Fill::kEmpty || fill == Fill::kSkewed) {
      const int64_t favourite = random.integer(0, p.vocab - 1);
      set_each(a.logits, [&](int64_t r, int64_t c) {
        if (fill == Fill::kEmpty) return coin(random) ? std::nan("") : -HUGE_VAL;
        return r % 2 == 0 ? (c == favourite ? 30.0 : 0.0) : (c % 2 == 0 ? 0.0 : -2.09);
      });
    }
    const auto pick = [&](const Tensor& t, std::initializer_list<double> values) {
      set_each(t, [&, values](int64_t, int64_t) {
        return one_of(random, std::span<const double>(values.begin(), values.size()));
      });
    };
    if (p.greedy) return;
    const auto vocab = static_cast<double>(p.vocab);
    pick(a.temperature, {1, 1, 1, 0.7, 0.7, 2.5, 0, -1, 1e-6, HUGE_VAL, std::nan("")});
    pick(a.top_k, {0, 0, 0, 1, 3, 40, vocab, vocab + 5, -2});
    pick(a.top_p, {1, 1, 1, 0.9, 0.5, 0.999, 0, -1, 2, std::nan("")});
    pick(a.min_p, {0, 0, 0, 0.05, 0.5, 1, 2, -1, std::nan("")});
    set_each(a.seed, [&](int64_t, int64_t) { return static_cast<double>(random.bits()) - 0x1p31; });
    set_each(a.step, [&](int64_t, int64_t) { return static_cast<double>(random.integer(0, 5000)); });
  }
  static Sample::Problem random(Random& r) {
    return {.rows = r.integer(0, 20),
            .vocab = coin(r) ? r.integer(0, 100) : r.integer(1, 3000),
            .logits = any_float(r),
            .greedy = r.integer(0, 4) == 0};
  }
};

}  // namespace sluice::test
