#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/combine.h"

namespace sluice {
namespace {

// The largest finite bf16: what f32 or bf16 arithmetic may round to infinity lies above.
constexpr double kOverflow = 0x1.fep127;

struct Element {
  double value = 0, bound = 0;
};

Element element(const Combine::Problem& p, const Combine::Args& a, int64_t t, int64_t h) {
  double sum = 0, magnitude = 0, flushed = 0, largest = 0;
  for (int64_t k = 0; k < p.slots; ++k) {
    const int64_t row = a.position.row<const int32_t>(t)[k];
    if (row < 0 || row >= p.rows) continue;
    const int64_t expert = p.bias ? a.ids.row<const int32_t>(t)[k] : -1;
    const double g = load2(a.g, row, h);
    const double bias = expert >= 0 && expert < p.experts ? load2(a.bias, expert, h) : 0;
    const double w = p.weighted ? load2(a.weights, t, k) : 1;
    sum += w * (g + bias);
    magnitude += std::abs(w) * (std::abs(g) + std::abs(bias));
    flushed += kFlush * (2 * std::abs(w) + std::abs(g) + std::abs(bias) + 1);
    largest = std::max({largest, std::abs(g) + std::abs(bias), magnitude});
  }
  const double shared = p.shared ? load2(a.shared, t, h) : 0;
  const double residual = p.residual ? load2(a.residual, t, h) : 0;
  const double value = p.scale * sum + shared + residual;
  const double total = std::abs(p.scale) * magnitude + std::abs(shared) + std::abs(residual);
  const double terms = static_cast<double>(p.slots + 6);
  const bool overflows = std::max(largest, total) * (1 + terms * kF32Eps) > kOverflow;
  if (overflows) return {value, std::numeric_limits<double>::infinity()};
  return {value, terms * kF32Eps * total + std::abs(p.scale) * flushed + 4 * kFlush + half_ulp(p.y, value)};
}

}  // namespace

Expectations reference(const Combine::Problem& p, const Combine::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t h = 0; h < p.hidden; ++h) {
      const Element out = element(p, a, t, h);
      y.value.push_back(out.value);
      y.bound.push_back(out.bound);
    }
  }
  return {y};
}

}  // namespace sluice
