#include <algorithm>
#include <cmath>

#include "ops/lora_delta.h"
#include "ops/reference/low_rank_reference.h"

namespace sluice {
namespace {

constexpr double kDeltaOverflow =
    0x1.fep127;  // largest finite bf16; a larger f32 value may round to infinity in bf16

}  // namespace

Expectations reference(const LoraDelta::Problem& p, const LoraDelta::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    const int64_t adapter = a.adapter.as<int32_t>()[t];
    const bool none = adapter < 0 || adapter >= p.adapters;
    const auto inner =
        none ? std::vector<InnerSum>() : inner_sums(a.a, adapter * p.rank, p.rank, p.hidden, a.x, t);
    for (int64_t n = 0; n < p.features; ++n) {
      const double before = load2(a.y, t, n);
      if (none) {
        y.value.push_back(before);
        y.bound.push_back(0);
        continue;
      }
      const LowRankSum sum = low_rank_sum(a.b, adapter * p.features + n, inner);
      const double scale = load(a.scale, adapter), value = before + scale * sum.value;
      const double total = std::abs(before) + std::abs(scale) * sum.magnitude;
      const double terms = static_cast<double>(p.hidden + p.rank + 6);
      const double bound = terms * kF32Eps * total + std::abs(scale) * sum.flushed +
                           kFlush * (sum.magnitude + 3) + half_ulp(p.y, value);
      const bool overflows =
          std::max({sum.largest_inner, sum.magnitude, total}) * (1 + terms * kF32Eps) > kDeltaOverflow;
      y.value.push_back(value);
      y.bound.push_back(overflows ? kInfinity : bound);
    }
  }
  return {y};
}

}  // namespace sluice
