#include "client/arrivals.h"

#include <cmath>

#include "base/random.h"

namespace sluice {
namespace {

// Source: Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables" (2000). Shapes below 1 follow its section 6.
double gamma(double shape, Random& random) {
  if (shape < 1) {
    const double whole = gamma(shape + 1, random);
    return whole * std::pow(1 - random.uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

std::vector<double> arrival_times(int64_t count, const ArrivalOptions& options) {
  std::vector<double> out(static_cast<size_t>(count), 0.0);
  if (options.request_rate <= 0) return out;
  Random random(options.seed);
  double sum = 0;
  for (double& at : out) at = sum += gamma(options.burstiness, random);
  const double scale = static_cast<double>(count) / options.request_rate / sum;
  for (double& at : out) at *= scale;
  return out;
}

}  // namespace sluice
