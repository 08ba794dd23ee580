#include <algorithm>
#include <cmath>

#include "ops/lora_delta.h"

namespace sluice {
namespace {

constexpr double kDeltaOverflow =
    0x1.fep127;  // largest finite bf16; a larger f32 value may round to infinity in bf16

// One element of A x, the sum of its terms' magnitudes, and the loss from flushing to zero.
struct Inner {
  double value = 0, magnitude = 0, flushed = 0;
};

std::vector<Inner> inner_products(const LoraDelta::Problem& p, const LoraDelta::Args& a, int64_t t,
                                  int64_t adapter) {
  std::vector<Inner> out(static_cast<size_t>(p.rank));
  for (int64_t r = 0; r < p.rank; ++r) {
    Inner& u = out[static_cast<size_t>(r)];
    for (int64_t h = 0; h < p.hidden; ++h) {
      const double w = load(a.a, (adapter * p.rank + r) * p.hidden + h), x = load2(a.x, t, h);
      u.value += w * x;
      u.magnitude += std::abs(w * x);
      u.flushed += kFlush * (std::abs(w) + std::abs(x) + 1);
    }
  }
  return out;
}

}  // namespace

Expectations reference(const LoraDelta::Problem& p, const LoraDelta::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t adapter = a.adapter.as<int32_t>()[t];
    const bool none = adapter < 0 || adapter >= p.adapters;
    const std::vector<Inner> inner = none ? std::vector<Inner>() : inner_products(p, a, t, adapter);
    for (int64_t n = 0; n < p.features; ++n) {
      const double before = load2(a.y, t, n);
      if (none) {
        y.value.push_back(before);
        y.bound.push_back(0);
        continue;
      }
      double sum = 0, magnitude = 0, flushed = 0, largest = 0;
      for (int64_t r = 0; r < p.rank; ++r) {
        const Inner& u = inner[static_cast<size_t>(r)];
        const double b = load(a.b, (adapter * p.features + n) * p.rank + r);
        sum += b * u.value;
        magnitude += std::abs(b) * u.magnitude;
        flushed += std::abs(b) * u.flushed + kFlush * (std::abs(b) + u.magnitude + 1);
        largest = std::max({largest, u.magnitude, magnitude});
      }
      const double scale = load(a.scale, adapter), value = before + scale * sum;
      const double total = std::abs(before) + std::abs(scale) * magnitude;
      const double terms = static_cast<double>(p.hidden + p.rank + 6);
      const double bound = terms * kF32Eps * total + std::abs(scale) * flushed + kFlush * (magnitude + 3) +
                           half_ulp(p.y, value);
      const bool overflows = std::max(largest, total) * (1 + terms * kF32Eps) > kDeltaOverflow;
      y.value.push_back(value);
      y.bound.push_back(overflows ? kInfinity : bound);
    }
  }
  return {y};
}

}  // namespace sluice
