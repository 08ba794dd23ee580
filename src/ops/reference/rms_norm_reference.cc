#include <cmath>
#include <limits>

#include "ops/rms_norm.h"

namespace sluice {
namespace {

bool row_overflows(double squares, double largest) {
  return std::isfinite(largest) && squares > std::numeric_limits<float>::max();
}

}  // namespace

Expectations reference(const RmsNorm::Problem& p, const RmsNorm::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  Expected residual{.slot = "residual", .value = {}, .bound = {}};
  const double relative = (0.5 * static_cast<double>(p.hidden) + 12) * kF32Eps;
  std::vector<double> h(static_cast<size_t>(p.hidden));
  for (int64_t head = 0; head < p.tokens * p.heads; ++head) {
    const int64_t t = head / p.heads, first = head % p.heads * p.hidden;
    double squares = 0, largest = 0;
    for (int64_t i = 0; i < p.hidden; ++i) {
      double& v = h[static_cast<size_t>(i)];
      v = load2(a.x, t, first + i) + (p.residual ? load2(a.residual, t, first + i) : 0);
      squares += v * v;
      largest = std::fmax(largest, std::abs(v));
      if (!p.residual) continue;
      residual.value.push_back(v);
      residual.bound.push_back(std::isfinite(v) ? kF32Eps * std::abs(v) + 3 * kFlush + half_ulp(p.x, v) : 0);
    }
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(p.hidden) + p.eps);
    for (int64_t i = 0; i < p.hidden; ++i) {
      const double v = h[static_cast<size_t>(i)], w = load(a.weight, i), out = v * inverse * w;
      // Numbers that may be flushed to zero: both addends, h, the weight, and the product before and after the
      // weight.
      const double flushed = kFlush * (3 * inverse * std::abs(w) + std::abs(v * inverse) + std::abs(w) + 1);
      y.value.push_back(out);
      y.bound.push_back(row_overflows(squares, largest) ? kInfinity
                        : std::isfinite(out) ? relative * std::abs(out) + flushed + half_ulp(p.y, out)
                                             : 0);
    }
  }
  if (p.residual) return {y, residual};
  return {y};
}

}  // namespace sluice
