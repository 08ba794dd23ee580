#pragma once
#include "harness/cases.h"
#include "ops/embedding.h"

namespace sluice::test {

template <>
struct Suite<Embedding> {
  static std::vector<Case<Embedding>> cases() {
    constexpr DType kF = DType::kF32;
    const auto apart = Spread::kStridedRows;
    return {
        {{.tokens = 3, .vocab = 501, .hidden = 2880}, "gpt-oss's width"},
        {{.tokens = 67, .vocab = 33, .hidden = 37, .table = kF, .y = kF},
         "sizes that no tile divides, in f32"},
        {{.tokens = 9, .vocab = 20, .hidden = 71, .y = kF}, "widens", Fill::kNormal, apart},
        {{.tokens = 9, .vocab = 20, .hidden = 71, .table = kF}, "rounds", Fill::kNormal, apart},
        {{.tokens = 9, .vocab = 20, .hidden = 71, .table = kF}, "rounds subnormal numbers", Fill::kTiny},
        {{.tokens = 9, .vocab = 20, .hidden = 71, .table = kF},
         "infinities stay infinities when rounded",
         Fill::kInfinite},
        {{.tokens = 9, .vocab = 20, .hidden = 71, .table = kF}, "NaN stays NaN when rounded", Fill::kSomeNan},
        {{.tokens = 5, .vocab = 1, .hidden = 1}, "the smallest sizes", Fill::kSkewed},
        {{.tokens = 7, .vocab = 12, .hidden = 40}, "every id is out of range", Fill::kEmpty},
        {{.tokens = 40, .vocab = 12, .hidden = 24}, "one id for all", Fill::kSkewed},
        {{.tokens = 0, .vocab = 12, .hidden = 24}, "no tokens"},
    };
  }
  static void fill(const Embedding::Problem& p, Fill fill, HostArgs<Embedding>& host, Random& random) {
    fill_floats(host.args().table, fill, random);
    set_each(host.args().ids, [&](int64_t, int64_t) -> double {
      if (fill == Fill::kEmpty)
        return static_cast<double>(one_of(random, {-1, p.vocab, INT32_MIN, INT32_MAX}));
      if (fill == Fill::kSkewed) return static_cast<double>(p.vocab - 1);
      return static_cast<double>(random.integer(-1, p.vocab));  // -1 and p.vocab are out of range
    });
  }
  static Embedding::Problem random(Random& r) {
    return {.tokens = r.integer(0, 40),
            .vocab = r.integer(1, 70),
            .hidden = r.integer(0, 150),
            .table = any_float(r),
            .y = any_float(r)};
  }
};

}  // namespace sluice::test
