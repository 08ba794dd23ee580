#include "least_squares.h"

#include <algorithm>
#include <cmath>

namespace sluice::bench {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Solves a x = b for a symmetric, positive definite a, by Cholesky's decomposition.
std::vector<double> solve(Matrix a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(sum) : sum / a[j][j];
    }
    for (size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

double squares(const std::vector<double>& r) {
  double sum = 0;
  for (const double one : r) sum += one * one;
  return sum;
}

}  // namespace

void least_squares(const std::vector<double*>& values, const std::function<std::vector<double>()>& residuals,
                   int rounds) {
  constexpr double kDifference = 1e-3, kStepMax = 0.3, kDampingMax = 1e6;
  const size_t n = values.size();
  std::vector<double> at = residuals();
  double damping = 1e-3;
  for (int round = 0; round < rounds; ++round) {
    Matrix slope(n);
    for (size_t i = 0; i < n; ++i) {
      const double before = *values[i];
      *values[i] = before * std::exp(kDifference);
      slope[i] = residuals();
      *values[i] = before;
      for (size_t k = 0; k < at.size(); ++k) slope[i][k] = (slope[i][k] - at[k]) / kDifference;
    }
    Matrix normal(n, std::vector<double>(n));
    std::vector<double> down(n);
    double largest = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < at.size(); ++k) down[i] -= slope[i][k] * at[k];
      for (size_t j = 0; j <= i; ++j) {
        for (size_t k = 0; k < at.size(); ++k) normal[i][j] += slope[i][k] * slope[j][k];
        normal[j][i] = normal[i][j];
      }
      largest = std::max(largest, normal[i][i]);
    }
    std::vector<double> before(n);
    for (size_t i = 0; i < n; ++i) before[i] = *values[i];
    bool better = false;
    while (!better && damping < kDampingMax) {
      Matrix damped = normal;
      // The 1e-4 keeps a value unchanged if the residuals hardly depend on it.
      for (size_t i = 0; i < n; ++i) damped[i][i] += damping * (normal[i][i] + 1e-4 * largest);
      const std::vector<double> step = solve(damped, down);
      for (size_t i = 0; i < n; ++i)
        *values[i] = before[i] * std::exp(std::clamp(step[i], -kStepMax, kStepMax));
      const std::vector<double> now = residuals();
      better = squares(now) < squares(at);
      if (better) {
        at = now, damping /= 4;
      } else {
        for (size_t i = 0; i < n; ++i) *values[i] = before[i];
        damping *= 4;
      }
    }
    if (!better) return;
  }
}

}  // namespace sluice::bench
