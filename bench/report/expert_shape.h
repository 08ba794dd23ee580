// Names of expert layer shapes in rows of the suite expert_configs: everything that their cost depends on.
#pragma once
#include <string>

#include "base/status.h"
#include "ops/expert_mlp.h"

namespace sluice::bench {

// "e2m1-2880x2880-128of128k4-swiglu_clamped": weight type, hidden x intermediate, experts of this rank and of all ranks,
// experts per token, and the activation.
std::string expert_shape_name(const ExpertMlp::Problem& problem);
// The layer of such a name, with no tokens yet and weights in fragments. Returns kInvalidArgument for any other name.
Result<ExpertMlp::Problem> expert_shape(const std::string& name);

}  // namespace sluice::bench
