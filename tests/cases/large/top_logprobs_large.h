// TopLogprobs cases whose reference is slow; they run only on GPUs (expert_gemm_large.h).
#pragma once
#include "cases/large/expert_gemm_large.h"
#include "cases/top_logprobs.h"

namespace sluice::test {

template <>
inline std::vector<Case<TopLogprobs>> large_cases<TopLogprobs>() {
  const auto apart = Spread::kStridedRows;
  return {
      {{.rows = 40, .logit_rows = 40, .vocab = 201088}, "gpt-oss's vocabulary, many rows"},
      {{.rows = 20, .logit_rows = 20, .vocab = 201088}, "unaligned rows", Fill::kNormal, apart},
      {{.rows = 10, .logit_rows = 10, .vocab = 201088}, "all equal", Fill::kAllEqual},
      {{.rows = 10, .logit_rows = 10, .vocab = 201088}, "logits that hardly differ", Fill::kTiny},
      {{.rows = 10, .logit_rows = 10, .vocab = 201088}, "few finite logits", Fill::kSkewed},
      {{.rows = 6, .logit_rows = 6, .vocab = 500009, .top = 32}, "a large vocabulary", Fill::kNormal, apart}};
}

}  // namespace sluice::test
