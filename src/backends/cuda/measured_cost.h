// Costs that are measurements: what a candidate took at the shapes of bench/measured, and between and beyond them what that
// says of other shapes.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "dispatch/candidate.h"

namespace sluice::cuda {

// One candidate at one shape of a matrix product: microseconds by tokens, ascending.
struct MeasuredCurve {
  struct Point {
    int64_t tokens;
    double us;
  };
  int64_t hidden = 0, experts = 0;
  std::vector<Point> points;
};

// The shape and work that a cost is asked for.
struct Work {
  int64_t hidden = 0, experts = 0, tokens = 0;
  double bytes = 0, flops = 0;  // of the problem at hand
};

// Microseconds. Takes the curve of the nearest shape (by the ratios of both sizes), interpolates it over tokens, both
// logarithmic, and scales it by the roofline of the work against that of the curve's own shape with bf16 operands. 0 tokens
// count as one. Curves measured on an H200; on other devices only the scale differs.
double measured_us(const std::vector<MeasuredCurve>& curves, const Work& work, const DeviceInfo& device);

}  // namespace sluice::cuda
