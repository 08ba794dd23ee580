// Cases of Sample that take a reference long, run only on GPUs (expert_gemm_large.h).
#pragma once
#include "cases/expert_gemm_large.h"
#include "cases/sample.h"

namespace sluice::test {

template <>
inline std::vector<Case<Sample>> large_cases<Sample>() {
  constexpr DType kB = DType::kBF16;
  const auto apart = Spread::kStridedRows;
  return {{{.rows = 40, .vocab = 201088}, "gpt-oss's vocabulary, every mixture of parameters"},
          {{.rows = 20, .vocab = 201088, .logits = kB}, "in bf16, thousands of ties at a cut"},
          {{.rows = 20, .vocab = 201088}, "rows at any address", Fill::kNormal, apart},
          {{.rows = 20, .vocab = 201088}, "all equal", Fill::kAllEqual},
          {{.rows = 20, .vocab = 201088}, "logits that hardly differ, so bins of thousands", Fill::kTiny},
          {{.rows = 20, .vocab = 201088}, "one token has most of it", Fill::kSkewed},
          {{.rows = 10, .vocab = 262144}, "a CTA alone on its SM"},
          {{.rows = 6, .vocab = 524293}, "more than a cluster holds", Fill::kNormal, apart},
          {{.rows = 4, .vocab = 1000003, .logits = kB}, "more than a cluster holds, in bf16"},
          {{.rows = 300, .vocab = 5003}, "several clusters on an SM, one after the other"}};
}

}  // namespace sluice::test
