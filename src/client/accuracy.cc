#include "client/accuracy.h"

#include <algorithm>
#include <cmath>

namespace sluice {

Interval wilson(double right, int64_t questions) {
  if (questions == 0) return {};
  constexpr double z = 1.959963984540054;  // for a 95% interval
  const auto n = static_cast<double>(questions);
  const double share = right / n, spread = z * z / n;
  const double centre = (share + spread / 2) / (1 + spread);
  const double half = z / (1 + spread) * std::sqrt(share * (1 - share) / n + spread / (4 * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

double sign_test(int64_t wins, int64_t losses) {
  const int64_t all = wins + losses, fewer = std::min(wins, losses);
  double tail = 0;
  for (int64_t k = 0; k <= fewer; ++k) {
    const auto n = static_cast<double>(all), i = static_cast<double>(k);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(i + 1) - std::lgamma(n - i + 1) - n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double deviation_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace sluice
