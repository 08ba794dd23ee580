// Costs that are measurements: what a kernel took at the shapes of bench/measured/h200, and between and beyond them what that
// says of other shapes.
#pragma once
#include <cstdint>
#include <string_view>

#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// Microseconds of the kernel of this name for a gate with bf16 operands. Takes its curve of the nearest shape (by the ratios of both sizes), interpolates it
// over tokens, both logarithmic, and scales it by the roofline of the problem against that of the curve's own shape. 0 tokens
// count as one. The name is one that tools/record_costs.py has written curves for (measured/router_gemm.inc). Curves come from
// an H200; on other devices only the scale differs.
double measured_us(std::string_view kernel, const RouterGemm::Problem& problem, const DeviceInfo& device);

}  // namespace sluice::cuda
