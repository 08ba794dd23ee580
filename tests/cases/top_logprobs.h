#pragma once
#include "harness/cases.h"
#include "ops/top_logprobs.h"

namespace sluice::test {

template <>
struct Suite<TopLogprobs> {
  static std::vector<Case<TopLogprobs>> cases() {
    const auto apart = Spread::kStridedRows;
    return {
        {{.rows = 2, .logit_rows = 3, .vocab = 201088}, "gpt-oss's vocabulary"},
        {{.rows = 40, .logit_rows = 30, .vocab = 1003}, "sizes that no tile divides", Fill::kNormal, apart},
        {{.rows = 9, .logit_rows = 9, .vocab = 8193 + 8192}, "one token more than whole chunks"},
        {{.rows = 30, .logit_rows = 20, .vocab = 517, .top = 0}, "the sampled token alone"},
        {{.rows = 30, .logit_rows = 20, .vocab = 517, .top = 1}, "the sampled token and the likeliest"},
        {{.rows = 30, .logit_rows = 20, .vocab = 517, .top = 32}, "the longest list"},
        {{.rows = 20, .logit_rows = 20, .vocab = 7}, "a list longer than the vocabulary"},
        {{.rows = 12, .logit_rows = 12, .vocab = 1}, "one token"},
        {{.rows = 20, .logit_rows = 20, .vocab = 9000}, "all equal: the lowest ids", Fill::kAllEqual},
        {{.rows = 20, .logit_rows = 20, .vocab = 100}, "-0 and +0 tie", Fill::kZerosMixed},
        {{.rows = 40, .logit_rows = 40, .vocab = 100}, "NaN counts as -inf", Fill::kSomeNan},
        {{.rows = 40, .logit_rows = 40, .vocab = 37}, "infinities of both signs", Fill::kInfinite},
        {{.rows = 20, .logit_rows = 20, .vocab = 100}, "only NaN and -inf", Fill::kEmpty},
        {{.rows = 40, .logit_rows = 40, .vocab = 300},
         "fewer finite logits than list entries",
         Fill::kSkewed},
        {{.rows = 20, .logit_rows = 20, .vocab = 300}, "logits that hardly differ", Fill::kTiny},
        {{.rows = 20, .logit_rows = 20, .vocab = 300}, "logits that overflow", Fill::kHuge},
        {{.rows = 0, .logit_rows = 3, .vocab = 300}, "no rows requested"},
        {{.rows = 3, .logit_rows = 0, .vocab = 300}, "rows requested, no logits"},
    };
  }
  static void fill(const TopLogprobs::Problem& p, Fill fill, HostArgs<TopLogprobs>& host, Random& random) {
    const TopLogprobs::Args& a = host.args();
    fill_floats(a.logits, fill, random, 3);
    if (fill == Fill::kEmpty || fill == Fill::kSkewed)
      set_each(a.logits, [&](int64_t, int64_t) {
        const bool number = fill == Fill::kSkewed && random.integer(0, 30) == 0;
        return number ? random.normal() : coin(random) ? std::nan("") : -HUGE_VAL;
      });
    const auto any = [&](int64_t count) {
      const bool there = count > 0 && random.integer(0, 15) != 0;
      return static_cast<double>(there ? random.integer(0, count - 1)
                                       : one_of(random, {-1, INT32_MIN, count, INT32_MAX}));
    };
    set_each(a.row, [&](int64_t, int64_t) { return any(p.logit_rows); });
    set_each(a.token, [&](int64_t, int64_t) { return any(p.vocab); });
    // Rows with ascending logits: each logit is the largest so far.
    for (int64_t r = 0; r < p.logit_rows && fill == Fill::kNormal; r += 5) {
      float* const x = a.logits.row<float>(r);
      std::sort(x, x + p.vocab);
    }
  }
  static TopLogprobs::Problem random(Random& r) {
    return {.rows = r.integer(0, 20),
            .logit_rows = r.integer(0, 20),
            .vocab = coin(r) ? r.integer(0, 100) : r.integer(1, 3000),
            .top = r.integer(0, 33)};
  }
};

}  // namespace sluice::test
