// The reference of ExpertGemm for an x that is known within error bounds, as in the second GEMM of ops/fused/expert_mlp.h.
#pragma once
#include <functional>

#include "ops/expert_gemm.h"

namespace sluice {

// Calls f(0) to f(count - 1), in any order and on any threads.
using Loop = std::function<void(int64_t count, const std::function<void(int64_t)>& f)>;
void one_by_one(int64_t count, const std::function<void(int64_t)>& f);

// Like reference(problem, args), but with x_at(row, k) in place of args.x. An infinite bound of x gives an
// infinite bound of y. `loop` runs over the features, which are independent of each other.
Expectations reference_given_x(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                               const std::function<Bounded(int64_t row, int64_t k)>& x_at,
                               const Loop& loop = one_by_one);

// The error of rounding to y; a value close to the largest one may round to infinity.
double rounding_error(DType y, Bounded value);

}  // namespace sluice
