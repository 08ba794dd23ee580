// Costs from measurements: the time of a kernel at the shapes of bench/measured/h200, interpolated and extrapolated to other
// shapes.
#pragma once
#include <cstdint>
#include <string_view>

#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// Microseconds of the named kernel for a gate with bf16 operands. Takes the kernel's curve of the nearest shape (by the ratios
// of both sizes), interpolates it over tokens, both logarithmic, and scales it by the roofline of the problem over that of
// the curve's shape. 0 tokens count as 1. tools/record_costs.py must have written curves of that name
// (measured/router_gemm.inc). Curves come from an H200; for other devices only the scale differs.
double measured_us(std::string_view kernel, const RouterGemm::Problem& problem, const DeviceInfo& device);

}  // namespace sluice::cuda
