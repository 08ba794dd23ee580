#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/expert_lora.h"

namespace sluice {
namespace {

constexpr double kLoraF32Max = std::numeric_limits<float>::max();

// A sum, the sum of its terms' magnitudes, and the loss from flushing to zero.
struct InnerSum {
  double value = 0, magnitude = 0, flushed = 0;
};

// One expert, and one adapter of it; adapter < 0: none.
struct Pair {
  int64_t expert, adapter;
  int64_t index(const ExpertLora::Problem& p) const { return adapter * p.experts + expert; }
};

std::vector<InnerSum> inner_sums(const ExpertLora::Problem& p, const ExpertLora::Args& a, Pair pair,
                                 int64_t x_row) {
  std::vector<InnerSum> out(static_cast<size_t>(ExpertLora::inner(p)));
  for (size_t k = 0; k < out.size(); ++k) {
    InnerSum& u = out[k];
    const int64_t row = pair.index(p) * ExpertLora::inner(p) + static_cast<int64_t>(k);
    for (int64_t h = 0; h < p.width; ++h) {
      const double w = load(a.a, row * p.width + h), x = load2(a.x, x_row, h);
      u.value += w * x;
      u.magnitude += std::abs(w * x);
      u.flushed += kFlush * (std::abs(w) + std::abs(x) + 1);
    }
  }
  return out;
}

// z' of the contract, with its bound; infinite if the formula in f32 may exceed the largest float.
Bounded updated(const ExpertLora::Problem& p, const ExpertLora::Args& a, Pair pair, int64_t r,
                int64_t feature, bool up, const std::vector<InnerSum>& inner) {
  const bool gated = ExpertLora::gated(p);
  const int64_t row = gated ? gated_row(p.gate_order, p.features, feature, up) : feature;
  const double before = load2(a.z, r, ExpertLora::z_column(p, feature, up));
  const double bias = p.bias ? load(a.bias, pair.expert * ExpertLora::product_rows(p) + row) : 0;
  const double scale = pair.adapter >= 0 ? load(a.scale, pair.adapter) : 0;
  double sum = 0, magnitude = 0, flushed = 0, largest = 0;
  for (int64_t k = 0; pair.adapter >= 0 && k < p.rank; ++k) {
    const InnerSum& u = inner[static_cast<size_t>(p.split && up ? p.rank + k : k)];
    const double b = load(a.b, (pair.index(p) * ExpertLora::product_rows(p) + row) * p.rank + k);
    sum += b * u.value;
    magnitude += std::abs(b) * u.magnitude;
    flushed += std::abs(b) * u.flushed + kFlush * (std::abs(b) + u.magnitude + 1);
    largest = std::max({largest, u.magnitude, std::abs(scale) * u.magnitude, magnitude});
  }
  if (pair.adapter >= 0) sum *= scale;
  const double total = std::abs(before) + std::abs(bias) + std::abs(scale) * magnitude;
  const double error = static_cast<double>(p.width + p.rank + 264) * kF32Eps;
  Bounded out{before + bias + sum, error * total + std::abs(scale) * flushed + kFlush * (magnitude + 4)};
  if (!(std::max(largest, total) * (1 + error) <= kLoraF32Max) && std::isfinite(out.value))
    out.bound = kInfinity;
  return out;
}

// The error of rounding to y; a value close to the largest one may round to infinity.
double rounding_to(DType y, Bounded v) {
  if (std::isinf(v.value)) return 0;
  const double reach = std::abs(v.value) + v.bound;
  const double largest = y == DType::kBF16 ? 0x1.FEp127 : kLoraF32Max;
  return reach <= largest ? half_ulp(y, reach) : kInfinity;
}

}  // namespace

Expectations reference(const ExpertLora::Problem& p, const ExpertLora::Args& a) {
  const auto size = static_cast<size_t>(p.rows * p.features);
  Expected y{.slot = "y", .value = std::vector<double>(size), .bound = std::vector<double>(size)};
  y.untouched.assign(size, 1);
  for (int64_t e = 0; e < p.experts; ++e) {
    const ActivationParams params =
        p.per_expert ? ActivationParams{load(a.act_params, 3 * e), load(a.act_params, 3 * e + 1),
                                        load(a.act_params, 3 * e + 2)}
                     : ActivationParams{p.alpha, p.beta, p.limit};
    const int64_t begin = a.row_begin.as<const int32_t>()[e], count = a.row_count.as<const int32_t>()[e];
    for (int64_t r = begin; r < begin + count; ++r) {
      const int64_t token = a.order.as<const int32_t>()[r] / p.slots;
      int64_t adapter = a.adapter.as<const int32_t>()[token];
      if (adapter < 0 || adapter >= p.adapters) adapter = -1;
      const Pair pair{e, adapter};
      const auto inner =
          adapter < 0 ? std::vector<InnerSum>() : inner_sums(p, a, pair, p.gathers ? token : r);
      for (int64_t f = 0; f < p.features; ++f) {
        const Bounded g = updated(p, a, pair, r, f, false, inner);
        const Bounded u = ExpertLora::gated(p) ? updated(p, a, pair, r, f, true, inner) : Bounded{};
        const Bounded out = activate(p.act, params, g, u);
        const auto at = static_cast<size_t>(r * p.features + f);
        y.value[at] = out.value;
        y.bound[at] = out.bound + rounding_to(p.y, out);
        y.untouched[at] = 0;
      }
    }
  }
  return {y};
}

}  // namespace sluice
