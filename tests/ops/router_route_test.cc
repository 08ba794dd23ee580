#include "cases/router_route.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(RouterRoute, Conformance, RouterRoute);

TEST(RouterRouteContract, EveryReasonOfBothHalvesOnce) {
  RouterRoute::Problem p{.route = {.tokens = -1, .experts = 2000, .top_k = 40}};
  EXPECT_EQ(RouterRoute::validate(p).line(),
            "needs tokens from 0 to 16384; tokens=-1; and needs experts from 1 to 1024; experts=2000; and "
            "needs tokens from 0 to 33554431; tokens=-1; and needs top_k from 1 to 32; top_k=40");
  p = {};
  p.route.input = RoutingInput::kPacked;
  EXPECT_EQ(RouterRoute::validate(p).line(), "needs input=logits (the gate makes them); input=packed");
}

// Two experts whose logits differ by less than a rounding error. The choice must agree with the logits that
// were written.
TEST(RouterRouteContract, TheChoiceIsHeldAgainstTheLogitsOfItsOwnRun) {
  const RouterRoute::Problem p{.route = {.tokens = 1, .experts = 2, .top_k = 1}, .hidden = 1};
  HostArgs<RouterRoute> host(p, Spread::kContiguous);
  const RouterRoute::Args& a = host.args();
  const auto run_of = [&](float first, float second, int32_t chosen) {
    a.logits.as<float>()[0] = first, a.logits.as<float>()[1] = second;
    a.ids.as<int32_t>()[0] = chosen;
    for (const Expected& e : expected_given(p, a))
      if (e.slot == "ids") return compare(e, a.ids).wrong;
    return int64_t{-1};
  };
  EXPECT_EQ(run_of(1.f, 1.0000001f, 1), 0);
  EXPECT_EQ(run_of(1.0000001f, 1.f, 0), 0);
  EXPECT_EQ(run_of(1.f, 1.0000001f, 0), 1);
  EXPECT_EQ(run_of(1.f, 1.f, 1), 1);
}

// Weights of the gate are unit vectors, so the logits are the activations and the answer is known by hand.
TEST(RouterRouteContract, ByHand) {
  const RouterRoute::Problem p{.route = {.tokens = 1, .experts = 3, .top_k = 2, .logits = DType::kF32},
                               .hidden = 3,
                               .x = DType::kF32,
                               .w = DType::kF32,
                               .gate_bias = true};
  HostArgs<RouterRoute> host(p, Spread::kContiguous);
  const RouterRoute::Args& a = host.args();
  set_each(a.x, [](int64_t, int64_t h) { return h == 1 ? 2 : 1; });
  set_each(a.w, [](int64_t e, int64_t h) { return e == h ? 1 : 0; });
  set_each(a.gate_bias, [](int64_t e, int64_t) { return e == 2 ? 1 + std::log(3.0) : 0; });
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = plan_op<RouterRoute>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  ASSERT_TRUE(plan.value().run(a, {}, device->stream()).ok());
  EXPECT_FLOAT_EQ(a.logits.as<float>()[0], 1);
  EXPECT_FLOAT_EQ(a.logits.as<float>()[2], static_cast<float>(2 + std::log(3.0)));
  EXPECT_EQ(a.ids.as<int32_t>()[0], 2);
  EXPECT_EQ(a.ids.as<int32_t>()[1], 1);
  EXPECT_NEAR(a.weights.as<float>()[0], 0.75, 1e-6);
  EXPECT_NEAR(a.weights.as<float>()[1], 0.25, 1e-6);
}

}  // namespace
}  // namespace sluice::test
