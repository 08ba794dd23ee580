#pragma once
#include "harness/cases.h"
#include "ops/take_tokens.h"

namespace sluice::test {

template <>
struct Suite<TakeTokens> {
  static std::vector<Case<TakeTokens>> cases() {
    return {
        {{.tokens = 1, .rows = 256}, "one sequence"},
        {{.tokens = 300, .rows = 64}, "more ids than a CTA has threads"},
        {{.tokens = 128, .rows = 1}, "one row for all", Fill::kSkewed},
        {{.tokens = 37, .rows = 5}, "every row out of range", Fill::kEmpty},
        {{.tokens = 0, .rows = 8}, "no tokens"},
        {{.tokens = 64, .rows = 64, .map = 64000}, "a draft head's own vocabulary"},
        {{.tokens = 200, .rows = 9, .map = 3}, "tokens outside the map", Fill::kSkewed},
    };
  }
  static void fill(const TakeTokens::Problem& p, Fill fill, HostArgs<TakeTokens>& host, Random& random) {
    // With a map, some tokens have ids that the map does not contain.
    set_each(host.args().sampled, [&](int64_t, int64_t) -> double {
      return static_cast<double>(p.map > 0 ? random.integer(-1, p.map) : random.integer(0, 200000));
    });
    if (p.map > 0)
      set_each(host.args().token_of, [&](int64_t, int64_t) { return random.integer(0, 200000); });
    set_each(host.args().ids, [&](int64_t, int64_t) -> double {
      if (fill == Fill::kEmpty) return static_cast<double>(one_of(random, {-1 - p.rows, INT32_MIN}));
      if (fill == Fill::kSkewed) return static_cast<double>(-p.rows);
      if (coin(random)) return static_cast<double>(one_of(random, {0, 7, 200000, INT32_MAX}));
      return static_cast<double>(random.integer(-1 - p.rows, -1));  // the lowest value refers to no row
    });
  }
  static TakeTokens::Problem random(Random& r) {
    return {.tokens = r.integer(0, 400), .rows = r.integer(0, 70), .map = coin(r) ? r.integer(0, 50) : 0};
  }
};

}  // namespace sluice::test
