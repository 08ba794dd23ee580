// The model column of the suite expert_configs: a name that holds everything on which the cost of an expert layer depends.
#pragma once
#include <string>

#include "base/status.h"
#include "ops/fused/expert_mlp.h"

namespace sluice::bench {

// "e2m1-2880x2880-128of128k4-swiglu_clamped": weight type, hidden x intermediate, experts on this GPU and in all,
// experts per token, and the activation.
std::string expert_shape_name(const ExpertMlp::Problem& problem);
// Parses such a name. The problem's token count is 0 and its weights are in fragment order. Any other name is kInvalidArgument.
Result<ExpertMlp::Problem> expert_shape(const std::string& name);

}  // namespace sluice::bench
