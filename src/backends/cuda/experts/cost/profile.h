// The distribution of rows over experts that the cost models assume. Each entry is a number of rows and how many experts have it.
#pragma once
#include <array>

#include "ops/expert_gemm.h"

namespace sluice::cuda {

struct RowKind {
  double rows = 0, experts = 0;
};
struct RowProfile {
  static constexpr int kKindsMax = 48;
  std::array<RowKind, kKindsMax> of{};
  int kinds = 0;
  const RowKind* begin() const { return of.data(); }
  const RowKind* end() const { return of.data() + kinds; }
  void add(double rows, double experts) {
    if (experts > 0 && rows > 0 && kinds < kKindsMax) of[static_cast<size_t>(kinds++)] = {rows, experts};
  }
};

// Each token chooses `slots` different experts, all equally likely,
// so row counts are binomial. Experts without rows are not listed.
RowProfile uniform_profile(const ExpertGemm::Problem& problem);
// The probability of an expert is proportional to 1 / its rank (Zipf 1.0). A token chooses an expert at most once.
RowProfile zipf_profile(const ExpertGemm::Problem& problem);

}  // namespace sluice::cuda
