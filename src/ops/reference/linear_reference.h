// Helpers shared by references of operations that begin with a dense layer.
#pragma once
#include "ops/linear.h"

namespace sluice {

// w[feature, k], in any layout.
double weight_of(const Linear::Problem& problem, const Linear::Args& args, int64_t feature, int64_t k);

}  // namespace sluice
