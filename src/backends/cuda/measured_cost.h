// Costs from measurements: interpolates a kernel's times at the shapes of bench/measured/h200 and extrapolates to other shapes.
#pragma once
#include <cstdint>
#include <string_view>

#include "dispatch/candidate.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {

// Predicted microseconds of the named router GEMM with bf16 operands. Chooses the kernel's curve of the nearest shape (by the
// ratios of hidden and experts) and interpolates it over tokens, logarithmically in both axes. Then scales the result by the
// ratio of two rooflines: the problem's and the curve's. 0 tokens count as 1. tools/record_costs.py must have written curves
// of that name (measured/router_gemm.inc). The curves come from an H200; for another device only the roofline changes.
double measured_us(std::string_view kernel, const RouterGemm::Problem& problem, const DeviceInfo& device);

}  // namespace sluice::cuda
