#include <algorithm>
#include <cmath>

#include "ops/combine.h"
#include "ops/reference/combine_reference.h"

namespace sluice {
namespace {

// The largest finite bf16: above it f32 or bf16 arithmetic may round to infinity.
constexpr double kCombineOverflow = 0x1.fep127;

Bounded element(const Combine::Problem& p, const Combine::Args& a, const GivenG& g_at, int64_t t, int64_t h) {
  double sum = 0, magnitude = 0, flushed = 0, largest = 0, brought = 0;
  for (int64_t k = 0; k < p.slots; ++k) {
    const int64_t row = a.position.row<const int32_t>(t)[k];
    if (row < 0 || row >= p.rows) continue;
    const int64_t expert = p.bias ? a.ids.row<const int32_t>(t)[k] : -1;
    const Bounded g = g_at(row, h);
    const double bias = expert >= 0 && expert < p.experts ? load2(a.bias, expert, h) : 0;
    const double w = p.weighted ? load2(a.weights, t, k) : 1;
    const double reach = std::abs(g.value) + g.bound + std::abs(bias);
    sum += w * (g.value + bias);
    magnitude += std::abs(w) * reach;
    brought += std::abs(w) * g.bound;
    flushed += kFlush * (2 * std::abs(w) + reach + 1);
    largest = std::max({largest, reach, magnitude});
  }
  const double shared = p.shared ? load2(a.shared, t, h) : 0;
  const double residual = p.residual ? load2(a.residual, t, h) : 0;
  const double value = p.scale * sum + shared + residual;
  const double total = std::abs(p.scale) * magnitude + std::abs(shared) + std::abs(residual);
  const double terms = static_cast<double>(p.slots + 6);
  const bool overflows = std::max(largest, total) * (1 + terms * kF32Eps) > kCombineOverflow;
  if (overflows) return {value, kInfinity};
  const double bound = terms * kF32Eps * total + std::abs(p.scale) * (flushed + brought) + 4 * kFlush;
  return {value, bound + half_ulp(p.y, std::abs(value) + bound)};
}

}  // namespace

Expectations reference_given_g(const Combine::Problem& p, const Combine::Args& a, const GivenG& g_at) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t h = 0; h < p.hidden; ++h) {
      const Bounded out = element(p, a, g_at, t, h);
      y.value.push_back(out.value);
      y.bound.push_back(out.bound);
    }
  }
  return {y};
}

Expectations reference(const Combine::Problem& p, const Combine::Args& a) {
  return reference_given_g(p, a, [&](int64_t row, int64_t h) { return Bounded{load2(a.g, row, h), 0}; });
}

}  // namespace sluice
