// Names of the shapes of expert layers in rows of the suite expert_configs: all that their cost depends on.
#pragma once
#include <string>

#include "base/status.h"
#include "ops/expert_mlp.h"

namespace sluice::bench {

// "e2m1-2880x2880-128of128k4-swiglu_clamped": type of the weights, hidden x intermediate, experts here of those that tokens choose
// from, and how many each of them does; the activation.
std::string expert_shape_name(const ExpertMlp::Problem& problem);
// The layer of such a name for no tokens yet, weights in fragments. kInvalidArgument: not such a name.
Result<ExpertMlp::Problem> expert_shape(const std::string& name);

}  // namespace sluice::bench
