#include "ops/reference/linear_reference.h"

#include <cmath>
#include <limits>

namespace sluice {

double weight_of(const Linear::Problem& p, const Linear::Args& a, int64_t n, int64_t k) {
  if (p.layout == WeightLayout::kRowMajor) return load(a.w, n * p.width + k);
  const PanelShape s = panel_shape(p.features, false, p.width);
  return to_float(a.w.as<const BF16>()[panel_bf16_index(s, panel_row(false, n, false), k)]);
}

Expectations reference(const Linear::Problem& p, const Linear::Args& a) {
  const auto size = static_cast<size_t>(p.tokens * p.features);
  Expected y{.slot = "y", .value = std::vector<double>(size), .bound = std::vector<double>(size)};
  std::vector<double> w(static_cast<size_t>(p.width));
  for (int64_t n = 0; n < p.features; ++n) {
    for (int64_t k = 0; k < p.width; ++k) w[static_cast<size_t>(k)] = weight_of(p, a, n, k);
    const double bias = p.bias ? load(a.bias, n) : 0;
    for (int64_t t = 0; t < p.tokens; ++t) {
      const double residual = p.residual ? load2(a.residual, t, n) : 0;
      double sum = bias + residual;
      double magnitude = std::abs(bias) + std::abs(residual), flushed = 2 * kFlush;
      for (int64_t k = 0; k < p.width; ++k) {
        const double x = load2(a.x, t, k), v = w[static_cast<size_t>(k)];
        sum += x * v;
        if (!std::isfinite(x * v)) continue;  // the sum is not finite either; rounding cannot change it
        magnitude += std::abs(x * v);
        flushed += kFlush * (std::abs(x) + std::abs(v) + 1);
      }
      const double bound = sum_bound(p.width + 2, magnitude) + flushed;
      // If magnitudes add up to more than the largest float, a partial sum may overflow; rounding to y may overflow too.
      const double largest = p.y == DType::kBF16 ? 0x1.FEp127 : double{std::numeric_limits<float>::max()};
      const double reach = std::isinf(sum) ? 0 : std::abs(sum) + bound;
      const bool fits = magnitude <= double{std::numeric_limits<float>::max()} && reach <= largest;
      const auto at = static_cast<size_t>(t * p.features + n);
      y.value[at] = sum;
      y.bound[at] = fits ? bound + half_ulp(p.y, reach) : kInfinity;
    }
  }
  return {y};
}

}  // namespace sluice
