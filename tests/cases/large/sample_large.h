// Sample cases whose reference is slow; they run only on GPUs (expert_gemm_large.h).
#pragma once
#include "cases/large/expert_gemm_large.h"
#include "cases/sample.h"

namespace sluice::test {

template <>
inline std::vector<Case<Sample>> large_cases<Sample>() {
  constexpr DType kB = DType::kBF16;
  const auto apart = Spread::kStridedRows;
  return {
      {{.rows = 40, .vocab = 201088}, "gpt-oss's vocabulary, mixed sampling parameters"},
      {{.rows = 20, .vocab = 201088, .logits = kB}, "bf16, thousands of ties at a cut-off"},
      {{.rows = 20, .vocab = 201088}, "unaligned rows", Fill::kNormal, apart},
      {{.rows = 20, .vocab = 201088}, "all equal", Fill::kAllEqual},
      {{.rows = 20, .vocab = 201088}, "logits that hardly differ, thousands of tokens per bin", Fill::kTiny},
      {{.rows = 20, .vocab = 201088}, "one token has most of the probability", Fill::kSkewed},
      {{.rows = 10, .vocab = 262144}, "one CTA per SM"},
      {{.rows = 6, .vocab = 524293}, "a row larger than a cluster holds", Fill::kNormal, apart},
      {{.rows = 4, .vocab = 1000003, .logits = kB}, "a row larger than a cluster holds, bf16"},
      {{.rows = 300, .vocab = 5003}, "several clusters per SM, one after the other"}};
}

}  // namespace sluice::test
