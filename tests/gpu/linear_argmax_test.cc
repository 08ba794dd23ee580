// Ties, which the double-precision reference of linear_argmax cannot check: it accepts every logit near the
// maximum.
#include <algorithm>
#include <vector>

#include "gpu/gpu.h"
#include "harness/cases.h"
#include "harness/run_case.h"
#include "ops/fused/linear_argmax.h"

namespace sluice::test {
namespace {

class GpuLinearArgmax : public OnGpu {};

// Logits are integers from 0 to 3, so every sum is exact. The first 3 of row t is at `first(t)`; many more
// follow, in the same lane, warp and block of 64 features, and in other tiles.
TEST_F(GpuLinearArgmax, TiesGoToTheLowerIdWhereverTheyAre) {
  constexpr int64_t kWidth = 128, kFeatures = 1000;
  for (const int64_t tokens : {1, 7, 40, 100, 300}) {
    const LinearArgmax::Problem p{.tokens = tokens, .features = kFeatures, .width = kWidth};
    HostArgs<LinearArgmax> host(p, Spread::kContiguous);
    const LinearArgmax::Args& a = host.args();
    // Row t selects column t % kWidth of w.
    set_each(a.x, [](int64_t t, int64_t k) { return k == t % kWidth ? 1 : 0; });
    const auto first = [](int64_t k) { return k * 37 % kFeatures; };
    set_each(a.w, [&](int64_t n, int64_t k) {
      if (n < first(k)) return static_cast<double>(n % 3);
      return n == first(k) || (n - first(k)) % 8 == 0 || (n - first(k)) % 13 == 0 ? 3. : 1.;
    });
    std::vector<double> logprob;
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t n = 0; n < kFeatures; ++n) sum += std::exp(load2(a.w, n, t % kWidth) - 3);
      logprob.push_back(-std::log(sum));
    }
    Expected token{.slot = "token", .value = {}, .bound = {}},
        lp{.slot = "logprob", .value = logprob, .bound = std::vector<double>(logprob.size(), 1e-5)};
    for (int64_t t = 0; t < tokens; ++t) token.value.push_back(static_cast<double>(first(t % kWidth)));
    for (const Candidate<LinearArgmax>* c : gpu().catalog().template table<LinearArgmax>()) {
      if (!c->supports(p, gpu().info()).accepted()) continue;
      run_case(*c, gpu(), p, host, {token, lp}, std::string(c->name) + " " + std::to_string(tokens));
    }
  }
}

}  // namespace
}  // namespace sluice::test
