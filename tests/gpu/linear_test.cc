// Dense layers on a GPU, beyond the conformance test: a row's bits do not depend on the other rows, nor on
// the configuration where the kernel promises that, and y may alias the residual.
#include <map>

#include "cases/linear.h"
#include "dispatch/plan.h"
#include "gpu/gpu.h"

namespace sluice::test {
namespace {

class GpuLinear : public OnGpu {
 protected:
  using Bytes = std::vector<std::byte>;

  // Returns y of the first `tokens` rows.
  Bytes run(const Candidate<Linear>& c, const Config& config, const Linear::Problem& p, Linear::Args a) {
    for (Tensor* t : {&a.x, &a.residual, &a.y}) t->shape[0] = p.tokens;
    const Plan<Linear> plan(&c, p, config);
    Bytes out(static_cast<size_t>(bytes_of(p.y, p.tokens * p.features)));
    EXPECT_TRUE(plan.run(a, {}, stream()).ok()) << c.name << ":" << config.name;
    EXPECT_TRUE(gpu().copy(out.data(), a.y.data, out.size(), stream()).ok());
    EXPECT_TRUE(gpu().wait(stream()).ok()) << c.name << ":" << config.name;
    return out;
  }
};

TEST_F(GpuLinear, BitsOfARowDoNotDependOnTheBatch) {
  const Linear::Problem all{.tokens = 300, .features = 200, .width = 1480, .bias = true, .residual = true};
  HostArgs<Linear> host(all, Spread::kContiguous);
  Random random(11);
  Suite<Linear>::fill(all, Fill::kNormal, host, random);
  DeviceArgs<Linear> live(gpu(), host);
  ASSERT_TRUE(live.upload(stream()).ok());
  for (const Candidate<Linear>* c : gpu().catalog().table<Linear>()) {
    if (!c->batch_invariant) continue;
    // y at the largest row count, by everything that the bits may depend on.
    std::map<std::string, Bytes> longest;
    for (const int64_t tokens : {300, 130, 64, 17, 8, 5, 1}) {
      const Linear::Problem p = Linear::at_tokens(all, tokens);
      if (!c->supports(p, gpu().info()).accepted()) continue;
      for (const Config& config : configs_of(*c, p, gpu().info())) {
        if (!config.refusal.accepted()) continue;
        const Bytes got = run(*c, config, p, live.args());
        const auto [known, fresh] = longest.try_emplace(c->config_decides_bits ? config.name : "", got);
        EXPECT_TRUE(std::equal(got.begin(), got.end(), known->second.begin()))
            << c->name << ":" << config.name << " with " << tokens << " rows";
      }
    }
    EXPECT_FALSE(longest.empty()) << c->name;
  }
}

TEST_F(GpuLinear, MayWriteOverTheResidual) {
  for (const int64_t tokens : {3, 40, 200}) {
    const Linear::Problem p{.tokens = tokens, .features = 328, .width = 264, .residual = true};
    HostArgs<Linear> host(p, Spread::kContiguous);
    Random random(13);
    Suite<Linear>::fill(p, Fill::kNormal, host, random);
    DeviceArgs<Linear> live(gpu(), host);
    for (const Candidate<Linear>* c : gpu().catalog().table<Linear>()) {
      if (!c->supports(p, gpu().info()).accepted()) continue;
      for (const Config& config : configs_of(*c, p, gpu().info())) {
        if (!config.refusal.accepted()) continue;
        ASSERT_TRUE(live.upload(stream()).ok());
        Linear::Args a = live.args();
        const Bytes apart = run(*c, config, p, a);
        a.y = a.residual;
        EXPECT_TRUE(run(*c, config, p, a) == apart) << c->name << ":" << config.name << " " << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
