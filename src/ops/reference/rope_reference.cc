#include "ops/reference/rope_reference.h"

#include <cmath>

namespace sluice {

void rotate(const Rope::Problem& p, const Rope::Args& a, Expected* x) {
  const int64_t half = p.rotary / 2;
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t position = a.positions.as<int32_t>()[t];
    if (position < 0 || position >= p.table_rows) continue;
    for (int64_t head = 0; head < p.heads; ++head) {
      for (int64_t i = 0; i < half; ++i) {
        const bool halves = p.pairs == RopePairs::kHalves;
        const auto start = (t * p.heads + head) * p.head_dim + p.first;
        const auto at_a = static_cast<size_t>(start + (halves ? i : 2 * i));
        const auto at_b = static_cast<size_t>(start + (halves ? i + half : 2 * i + 1));
        const double c = load(a.table, (position * half + i) * 2);
        const double s = load(a.table, (position * half + i) * 2 + 1);
        const double u = x->value[at_a], v = x->value[at_b], of_u = x->bound[at_a], of_v = x->bound[at_b];
        const auto set = [&](size_t at, double value, double by_u, double by_v) {
          const double known = (by_u > 0 ? by_u * of_u : 0) + (by_v > 0 ? by_v * of_v : 0);
          const double magnitude = by_u * std::abs(u) + by_v * std::abs(v) + known;
          const double flushed = kFlush * (3 + by_u + by_v + std::abs(u) + std::abs(v));
          x->value[at] = value;
          if (std::isfinite(value))
            x->bound[at] = known + 3 * kF32Eps * magnitude + flushed + half_ulp(p.x, std::abs(value) + known);
        };
        set(at_a, u * c - v * s, std::abs(c), std::abs(s));
        set(at_b, v * c + u * s, std::abs(s), std::abs(c));
      }
    }
  }
}

Expectations reference(const Rope::Problem& p, const Rope::Args& a) {
  Expected x{.slot = "x", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t)
    for (int64_t i = 0; i < p.heads * p.head_dim; ++i) x.value.push_back(load2(a.x, t, i));
  x.bound.assign(x.value.size(), 0);
  rotate(p, a, &x);
  return {x};
}

}  // namespace sluice
