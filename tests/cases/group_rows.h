#pragma once
#include "harness/cases.h"
#include "ops/group_rows.h"

namespace sluice::test {

template <>
struct Suite<GroupRows> {
  static std::vector<Case<GroupRows>> cases() {
    return {
        {{.tokens = 1, .slots = 4, .experts = 128}, "gpt-oss-120b decode"},
        {{.tokens = 16, .slots = 9, .experts = 257, .row_align = 16},
         "DeepSeek V3 with its shared expert, tiles"},
        {{.tokens = 33, .slots = 22, .experts = 512}, "Nemotron-3 Super"},
        {{.tokens = 7, .slots = 1, .experts = 16, .row_align = 64}, "Llama 4, mostly padding"},
        {{.tokens = 4099, .slots = 11, .experts = 61, .row_align = 8}, "several blocks, of unequal length"},
        {{.tokens = 8192, .slots = 4, .experts = 300}, "several blocks, some of them empty", Fill::kEmpty},
        {{.tokens = 4096, .slots = 8, .experts = 3},
         "several blocks, everything on one expert",
         Fill::kSkewed},
        {{.tokens = 0, .slots = 4, .experts = 128}, "no tokens"},
        {{.tokens = 0, .slots = 4, .experts = 5, .row_align = 32}, "no tokens, only padding rows"},
        {{.tokens = 9, .slots = 3, .experts = 1}, "one expert"},
        {{.tokens = 2, .slots = 64, .experts = 2048, .row_align = 256},
         "the largest size of every dimension"},
        {{.tokens = 50, .slots = 6, .experts = 32, .row_align = 4}, "all ids -1", Fill::kEmpty},
        {{.tokens = 64, .slots = 8, .experts = 256, .tile_rows = 16}, "tiles in a decode step"},
        {{.tokens = 300, .slots = 4, .experts = 32, .row_align = 8, .tile_rows = 64}, "tiles, aligned rows"},
        {{.tokens = 5000, .slots = 8, .experts = 128, .row_align = 128, .tile_rows = 128},
         "tiles in prefill, several blocks"},
        {{.tokens = 50, .slots = 6, .experts = 32, .tile_rows = 8}, "no tiles", Fill::kEmpty},
        {{.tokens = 1200, .slots = 6, .experts = 32, .row_align = 16, .tile_rows = 8},
         "all tiles of one expert",
         Fill::kSkewed},
        {{.tokens = 0, .slots = 4, .experts = 5, .row_align = 32, .tile_rows = 32}, "no tokens, no tiles"},
        {{.tokens = 3, .slots = 1, .experts = 1, .tile_rows = 256}, "one short tile"},
        {{.tokens = 50, .slots = 6, .experts = 32, .row_align = 4},
         "everything on the last expert",
         Fill::kSkewed},
    };
  }
  static void fill(const GroupRows::Problem& p, Fill fill, HostArgs<GroupRows>& host, Random& random) {
    set_each(host.args().ids, [&](int64_t, int64_t) -> int64_t {
      if (fill == Fill::kEmpty) return -1;
      if (fill == Fill::kSkewed) return random.integer(0, 40) ? p.experts - 1 : -1;
      if (fill == Fill::kHuge) return random.integer(0, 1) ? kRowLimit : -kRowLimit - 1;
      return random.integer(0, 9) ? random.integer(0, p.experts - 1) : one_of(random, {-1, -7, p.experts});
    });
  }
  static GroupRows::Problem random(Random& r) {
    return {.tokens = r.integer(0, 60),
            .slots = r.integer(1, 20),
            .experts = r.integer(1, 90),
            .row_align = one_of(r, {1, 1, 2, 3, 16, 128}),
            .tile_rows = one_of(r, {0, 0, 8, 16, 24, 64, 256})};
  }
  static constexpr int64_t kRowLimit = std::numeric_limits<int32_t>::max();
};

}  // namespace sluice::test
