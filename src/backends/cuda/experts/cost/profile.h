// The distribution of row counts that the cost models assume: kinds of experts, and the number of experts of each kind.
#pragma once
#include <array>

#include "ops/expert_gemm.h"

namespace sluice::cuda {

struct RowKind {
  double rows = 0, experts = 0;
};
struct RowProfile {
  static constexpr int kKindsMost = 48;
  std::array<RowKind, kKindsMost> of{};
  int kinds = 0;
  const RowKind* begin() const { return of.data(); }
  const RowKind* end() const { return of.data() + kinds; }
  void add(double rows, double experts) {
    if (experts > 0 && rows > 0 && kinds < kKindsMost) of[static_cast<size_t>(kinds++)] = {rows, experts};
  }
};

// Each token takes `slots` different experts, all equally likely. Row counts are binomial; experts without
// rows are left out.
RowProfile uniform_profile(const ExpertGemm::Problem& problem);
// An expert's probability is the inverse of its rank (Zipf 1.0). A token takes an expert at most once.
RowProfile zipf_profile(const ExpertGemm::Problem& problem);

}  // namespace sluice::cuda
