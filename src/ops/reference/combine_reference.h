// The reference of Combine for a g that is known within error bounds, as in the last step of ops/fused/expert_mlp.h.
#pragma once
#include <functional>

#include "ops/activation.h"
#include "ops/combine.h"

namespace sluice {

using GivenG = std::function<Bounded(int64_t row, int64_t h)>;

// Like reference(problem, args), but with g_at(row, h) in place of args.g.
Expectations reference_given_g(const Combine::Problem& problem, const Combine::Args& args,
                               const GivenG& g_at);

}  // namespace sluice
