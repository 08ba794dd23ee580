#include <cmath>

#include "ops/router_gemm.h"

namespace sluice {

Expectations reference(const RouterGemm::Problem& p, const RouterGemm::Args& a) {
  Expected y{.slot = "y", .value = {}, .bound = {}};
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t e = 0; e < p.experts; ++e) {
      double sum = p.bias ? load(a.bias, e) : 0;
      double magnitude = std::abs(sum), flushed = 0;
      for (int64_t h = 0; h < p.hidden; ++h) {
        const double x = load2(a.x, t, h), w = load2(a.w, e, h);
        sum += x * w;
        magnitude += std::abs(x * w);
        flushed += kFlush * (std::abs(x) + std::abs(w) + 1);
      }
      y.value.push_back(sum);
      y.bound.push_back(sum_bound(p.hidden + 1, magnitude) + flushed);
      // The result may round up to the next power of two, whose ulp is larger.
      y.bound.back() += half_ulp(p.y, std::abs(sum) + y.bound.back());
    }
  }
  return {y};
}

}  // namespace sluice
