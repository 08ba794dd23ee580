// The reference of ExpertMlp on several threads, because one thread needs half a second per expert.
#pragma once
#include "ops/expert_gemm_reference.h"
#include "ops/expert_mlp.h"

namespace sluice {

Expectations reference(const ExpertMlp::Problem& problem, const ExpertMlp::Args& args, const Loop& loop);

}  // namespace sluice
