// The reference of ExpertGemm for an x that is itself known up to bounds: what ops/expert_mlp.h is composed of.
#pragma once
#include <functional>

#include "ops/expert_gemm.h"

namespace sluice {

// As reference(problem, args), with x_at(row, k) in place of args.x. An infinite bound there leaves an infinite one.
Expectations reference_given_x(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                               const std::function<Bounded(int64_t row, int64_t k)>& x_at);

}  // namespace sluice
