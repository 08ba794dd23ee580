// ExpertGemm cases whose reference is slow; they run only on GPUs. They have too many rows and experts for
// tests that run all CPU kernels at all instruction levels.
#pragma once
#include <vector>

#include "cases/expert_gemm.h"

namespace sluice::test {

template <class Op>
std::vector<Case<Op>> large_cases() {
  return {};
}

// CTA pairs with MXFP4 weights. Token rows are already in order, or are ordered by the kernel, with sums in
// chunks and tiles in later waves of the grid. Experts have several tiles, or a single tile of its own class.
template <>
inline std::vector<Case<ExpertGemm>> large_cases<ExpertGemm>() {
  struct Sizes {
    int64_t rows, expected, experts, weight_rows, width, slots;
    Fill fill = Fill::kNormal;
  };
  std::vector<Case<ExpertGemm>> out;
  for (const Sizes& s : {Sizes{300, 20000, 2, 2600, 736, 2},
                         {3000, 10000, 24, 5120, 32, 2},
                         {330, 20000, 2, 2600, 352, 0},
                         {360, 360, 2, 136, 96, 2},
                         {180, 4320, 24, 10432, 32, 0, Fill::kSkewed},
                         {190, 4320, 24, 10432, 96, 2, Fill::kSkewed},
                         {500, 4320, 24, 10432, 160, 2, Fill::kSkewed}})
    for (const Activation act : {Activation::kRelu2, Activation::kSwiGluClamped})
      out.push_back({{.rows = s.rows,
                      .rows_expected = s.expected,
                      .experts = s.experts,
                      .features = is_gated(act) ? s.weight_rows / 2 : s.weight_rows,
                      .width = s.width,
                      .tokens = s.slots > 0 ? s.rows / s.slots : 0,
                      .slots = s.slots,
                      .layout = WeightLayout::kFragments,
                      .act = act,
                      .alpha = 1.702,
                      .beta = 1,
                      .limit = 7,
                      .bias = true},
                     "CTA pairs",
                     s.fill});
  return out;
}

}  // namespace sluice::test
