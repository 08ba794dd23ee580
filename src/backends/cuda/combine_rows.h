// Combine for callers inside the backend.
#pragma once
#include "backends/cuda/launch.h"
#include "ops/combine.h"

namespace sluice::cuda {

// As ops/combine.h says, but for rows of g that stand at their slots: a.position holds ids, and a slot whose id is outside
// [0, p.experts) is empty. `name` is noted for messages.
Status launch_combine_by_slot(std::string_view name, const Combine::Problem& p, const Combine::Args& a,
                              Stream stream);

}  // namespace sluice::cuda
