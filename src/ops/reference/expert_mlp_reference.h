// The reference of ExpertMlp on several threads, because one thread needs half a second per expert.
#pragma once
#include "ops/fused/expert_mlp.h"
#include "ops/reference/expert_gemm_reference.h"

namespace sluice {

Expectations reference(const ExpertMlp::Problem& problem, const ExpertMlp::Args& args, const Loop& loop);

}  // namespace sluice
