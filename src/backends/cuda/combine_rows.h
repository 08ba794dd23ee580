// Combine for callers inside the backend.
#pragma once
#include "backends/cuda/launch.h"
#include "ops/combine.h"

namespace sluice::cuda {

// Combine as in ops/combine.h, except that row s of g belongs to slot s: a.position holds expert ids, and a slot whose id is
// outside [0, p.experts) is empty. `name` is the kernel's name in error messages.
Status launch_combine_by_slot(std::string_view name, const Combine::Problem& p, const Combine::Args& a,
                              Stream stream);

}  // namespace sluice::cuda
