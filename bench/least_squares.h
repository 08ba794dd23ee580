// Least squares of a function of positive values (Levenberg and Marquardt), with derivatives by differences.
#pragma once
#include <functional>
#include <vector>

namespace sluice::bench {

// Changes the values, each by its logarithm, so that the sum of squares of residuals() falls. residuals() reads the values where
// they are, and returns equally many numbers each time.
void least_squares(const std::vector<double*>& values, const std::function<std::vector<double>()>& residuals,
                   int rounds);

}  // namespace sluice::bench
