#pragma once
#include "harness/cases.h"
#include "ops/count_experts.h"

namespace sluice::test {

template <>
struct Suite<CountExperts> {
  static std::vector<Case<CountExperts>> cases() {
    const auto apart = Spread::kStridedRows;
    return {
        {{.layers = 36, .tokens = 1}, "gpt-oss-120b decodes one token"},
        {{.layers = 24, .tokens = 300, .experts = 32}, "gpt-oss-20b, a prefill chunk"},
        {{.layers = 5, .tokens = 37, .top_k = 8, .experts = 256}, "strided layers", Fill::kNormal, apart},
        {{.layers = 3, .tokens = 129, .top_k = 3, .experts = 7}, "odd sizes"},
        {{.layers = 3, .tokens = 129, .top_k = 3, .experts = 7},
         "odd sizes, strided layers",
         Fill::kNormal,
         apart},
        {{.layers = 2, .tokens = 9000, .experts = 32}, "many tokens"},
        {{.layers = 2, .tokens = 9000, .experts = 32}, "many tokens on one expert", Fill::kSkewed},
        {{.layers = 2, .tokens = 40, .top_k = 32, .experts = 33}, "nearly all experts of each token"},
        {{.layers = 3, .tokens = 64, .experts = 1024}, "the largest expert count"},
        {{.layers = 4, .tokens = 50, .experts = 16}, "no valid id", Fill::kEmpty},
        {{.layers = 7, .tokens = 0}, "no tokens"},
        {{.layers = 1, .tokens = 1, .top_k = 1, .experts = 1}, "one layer, token, expert and slot"},
    };
  }
  static void fill(const CountExperts::Problem& p, Fill fill, HostArgs<CountExperts>& host, Random& random) {
    set_each(host.args().counts,
             [&](int64_t, int64_t) { return random.integer(0, coin(random) ? 3 : int64_t{1} << 40); });
    set_each(host.args().ids, [&](int64_t, int64_t) {
      if (fill == Fill::kSkewed) return p.experts - 1;
      if (fill == Fill::kEmpty || random.integer(0, 7) == 0)
        return one_of(random, {-1, INT32_MIN, p.experts, INT32_MAX});
      return random.integer(0, p.experts - 1);
    });
  }
  static CountExperts::Problem random(Random& r) {
    return {.layers = r.integer(0, 40),
            .tokens = coin(r) ? r.integer(0, 5) : r.integer(0, 700),
            .top_k = r.integer(0, 33),
            .experts = coin(r) ? r.integer(0, 40) : r.integer(1, 1030)};
  }
};

}  // namespace sluice::test
