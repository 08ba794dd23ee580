#include "cases/linear_argmax.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(LinearArgmax, Conformance, LinearArgmax);

// Logits 1, 3, 3, 2 and their negatives: integers, so that sums are exact and equal logits tie.
TEST(LinearArgmaxByHand, TheFirstOfTheLargest) {
  const LinearArgmax::Problem p{.tokens = 2, .features = 4, .width = 4};
  HostArgs<LinearArgmax> host(p, Spread::kContiguous);
  const LinearArgmax::Args& a = host.args();
  constexpr double kLogits[] = {1, 3, 3, 2};
  set_each(a.x, [](int64_t t, int64_t) { return t == 0 ? 0.5 : -0.5; });
  set_each(a.w, [&](int64_t n, int64_t k) { return k < 2 ? kLogits[n] : 0; });
  for (const auto& device : every_level(2)) {
    const auto plan = plan_op<LinearArgmax>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    std::vector<std::byte> scratch(plan.value().workspace_bytes());
    ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
    EXPECT_EQ(a.token.as<int32_t>()[0], 1);
    EXPECT_EQ(a.token.as<int32_t>()[1], 0);
    EXPECT_NEAR(a.logprob.as<float>()[0], -std::log(2 + std::exp(-1.0) + std::exp(-2.0)), 1e-6);
    EXPECT_NEAR(a.logprob.as<float>()[1], -std::log(1 + std::exp(-1.0) + 2 * std::exp(-2.0)), 1e-6);
  }
}

// A reference that accepted any token would check nothing.
TEST(LinearArgmaxByHand, TheReferenceRefusesOtherTokens) {
  const LinearArgmax::Problem p{.tokens = 1, .features = 3, .width = 128};
  HostArgs<LinearArgmax> host(p, Spread::kContiguous);
  const LinearArgmax::Args& a = host.args();
  set_each(a.x, [](int64_t, int64_t) { return 1; });
  set_each(a.w, [](int64_t n, int64_t) { return n == 2 ? 0.25 : 0.125; });
  const Expectations wanted = reference(p, a);
  EXPECT_TRUE(wanted[0].accept(0, 2));
  for (const double other : {-1., 0., 1., 3.}) EXPECT_FALSE(wanted[0].accept(0, other));
  const double logprob = -std::log(1 + 2 * std::exp(-16.0));
  EXPECT_TRUE(wanted[1].accept(0, logprob));
  EXPECT_FALSE(wanted[1].accept(0, logprob - 0.02));
  EXPECT_FALSE(wanted[1].accept(0, kNan));
}

}  // namespace
}  // namespace sluice::test
