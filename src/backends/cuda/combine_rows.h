// Combine, for callers inside the CUDA backend.
#pragma once
#include "backends/cuda/launch.h"
#include "ops/combine.h"

namespace sluice::cuda {

// Combine as in ops/combine.h, except that row s of g belongs to slot s, and a.position has expert ids.
// A slot is empty if its id is outside [0, p.experts). `name` is the kernel's name in error messages.
Status launch_combine_by_slot(std::string_view name, const Combine::Problem& p, const Combine::Args& a,
                              Stream stream);

}  // namespace sluice::cuda
