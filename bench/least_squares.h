// Least squares over positive values (Levenberg-Marquardt), with derivatives by finite differences.
#pragma once
#include <functional>
#include <vector>

namespace sluice::bench {

// Changes the values, each by its logarithm, so that the sum of squares of residuals() decreases. residuals() reads the values
// in place and returns the same number of residuals each time.
void least_squares(const std::vector<double*>& values, const std::function<std::vector<double>()>& residuals,
                   int rounds);

}  // namespace sluice::bench
