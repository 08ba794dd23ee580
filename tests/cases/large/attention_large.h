// Attention cases whose reference is slow; they run only on GPUs (expert_gemm_large.h). Each CTA of the grid
// has several tiles of queries.
#pragma once
#include "cases/attention.h"
#include "cases/large/expert_gemm_large.h"

namespace sluice::test {

template <>
inline std::vector<Case<Attention>> large_cases<Attention>() {
  using P = Attention::Problem;
  const P prompt{.tokens = 430,
                 .sequences = 1,
                 .heads = 64,
                 .kv_heads = 8,
                 .pages = 60,
                 .pages_per_seq = 50,
                 .window = 40,
                 .sinks = true};
  P narrow = prompt, wide = prompt, prompts = prompt, decodes = prompt;
  narrow.cache = CacheType::kE4M3;
  wide.tokens = 150, wide.heads = 128, wide.head_dim = 128, wide.window = 24;
  prompts.tokens = 700, prompts.sequences = 7, prompts.pages_per_seq = 4, prompts.window = 0;
  decodes.tokens = 600, decodes.sequences = 300, decodes.rows_max = 4, decodes.heads = 16,
  decodes.kv_heads = 2, decodes.pages_per_seq = 4, decodes.window = 0;
  return {{prompt, "more query tiles of one prompt than SMs", Fill::kSkewed},
          {narrow, "e4m3: more query tiles of one prompt than SMs", Fill::kSkewed},
          {wide, "more query tiles than SMs, wide heads", Fill::kSkewed},
          {prompts, "more query tiles of several prompts than SMs"},
          {decodes, "more tiles of few rows than resident clusters"}};
}

}  // namespace sluice::test
