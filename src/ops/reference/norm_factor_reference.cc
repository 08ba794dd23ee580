#include "ops/reference/norm_factor_reference.h"

#include <cmath>

namespace sluice {

NormFactor::NormFactor(const RmsNorm::Problem& p, const RmsNorm::Args& a, const Tensor& normed, int64_t t,
                       double share)
    : share_(share) {
  for (int64_t h = 0; h < p.hidden; ++h) squares_ += std::pow(load2(a.x, t, h), 2);
  const double inverse = 1 / std::sqrt(squares_ / static_cast<double>(p.hidden) + p.eps);
  for (int64_t h = 0; h < p.hidden; ++h) {
    const double scale = std::abs(load(a.weight, h));
    normed_.push_back(std::abs(load2(normed, t, h)));
    before_.push_back(std::abs(load2(a.x, t, h)) * scale);
    flushed_.push_back(kFlush * (inverse * (1 + scale) + 1));
  }
}

double NormFactor::more(std::span<const double> w) const {
  constexpr double kLargest = 0x1p127;
  if (squares_ > kLargest) return std::isfinite(squares_) ? kInfinity : 0;
  double sum = 0, before = 0, flushed = 0;
  for (size_t h = 0; h < w.size(); ++h) {
    sum += normed_[h] * w[h];
    before += before_[h] * w[h];
    flushed += flushed_[h] * (w[h] + 1);
  }
  if (before > kLargest && std::isfinite(before)) return kInfinity;
  return std::isfinite(sum) ? share_ * sum + flushed : 0;
}

double widened(DType dtype, double value, double bound, double more) {
  const double magnitude = std::abs(value), wider = bound + more;
  return wider + (half_ulp(dtype, magnitude + wider) - half_ulp(dtype, magnitude));
}

}  // namespace sluice
