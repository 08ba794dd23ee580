#include <limits>

#include "ops/expert_lora.h"
#include "ops/reference/expert_gemm_reference.h"
#include "ops/reference/low_rank_reference.h"

namespace sluice {
namespace {

constexpr double kLoraF32Max = std::numeric_limits<float>::max();

// One expert, and one adapter of it; adapter < 0: none.
struct Pair {
  int64_t expert, adapter;
  int64_t index(const ExpertLora::Problem& p) const { return adapter * p.experts + expert; }
};

// z' of the contract, with its bound; infinite if the formula in f32 may exceed the largest float.
Bounded updated(const ExpertLora::Problem& p, const ExpertLora::Args& a, Pair pair, int64_t r,
                int64_t feature, bool up, const std::vector<InnerSum>& inner) {
  const bool gated = ExpertLora::gated(p);
  const int64_t row = gated ? gated_row(p.gate_order, p.features, feature, up) : feature;
  const double before = load2(a.z, r, ExpertLora::z_column(p, feature, up));
  const double bias = p.bias ? load(a.bias, pair.expert * ExpertLora::product_rows(p) + row) : 0;
  const double scale = pair.adapter >= 0 ? load(a.scale, pair.adapter) : 0;
  LowRankSum sum;
  if (pair.adapter >= 0)
    sum = low_rank_sum(a.b, pair.index(p) * ExpertLora::product_rows(p) + row,
                       std::span(inner).subspan(static_cast<size_t>(p.split && up ? p.rank : 0),
                                                static_cast<size_t>(p.rank)));
  const double total = std::abs(before) + std::abs(bias) + std::abs(scale) * sum.magnitude;
  const double error = static_cast<double>(p.width + p.rank + 264) * kF32Eps;
  Bounded out{before + bias + scale * sum.value,
              error * total + std::abs(scale) * sum.flushed + kFlush * (sum.magnitude + 4)};
  const double largest =
      std::max({sum.largest_inner, std::abs(scale) * sum.largest_inner, sum.magnitude, total});
  if (!(largest * (1 + error) <= kLoraF32Max) && std::isfinite(out.value)) out.bound = kInfinity;
  return out;
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
      const auto inner = adapter < 0 ? std::vector<InnerSum>()
                                     : inner_sums(a.a, pair.index(p) * ExpertLora::inner(p),
                                                  ExpertLora::inner(p), p.width, a.x, p.gathers ? token : r);
      for (int64_t f = 0; f < p.features; ++f) {
        const Bounded g = updated(p, a, pair, r, f, false, inner);
        const Bounded u = ExpertLora::gated(p) ? updated(p, a, pair, r, f, true, inner) : Bounded{};
        const Bounded out = activate(p.act, params, g, u);
        const auto at = static_cast<size_t>(r * p.features + f);
        y.value[at] = out.value;
        y.bound[at] = out.bound + rounding_error(p.y, out);
        y.untouched[at] = 0;
      }
    }
  }
  return {y};
}

}  // namespace sluice
