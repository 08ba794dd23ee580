#include "cases/norm_router_route.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(NormRouterRoute, Conformance, NormRouterRoute);

// The mean square of alternating 3 and 4 is 12.5. Expert e reads only column e, and the norm's weight doubles
// column 1.
TEST(NormRouterRouteByHand, ChoosesByTheNorm) {
  NormRouterRoute::Problem p;
  p.eps = 0x1p-100;
  p.router = {.route = {.tokens = 1, .experts = 3, .top_k = 1, .logits = DType::kF32},
              .hidden = 4,
              .x = DType::kF32,
              .w = DType::kF32};
  HostArgs<NormRouterRoute> host(p, Spread::kContiguous);
  const NormRouterRoute::Args& a = host.args();
  set_each(a.x, [](int64_t, int64_t h) { return h % 2 ? 3 : 4; });
  set_each(a.w, [](int64_t e, int64_t h) { return e == h ? 1 : 0; });
  for (int64_t h = 0; h < 4; ++h) a.norm_weight.as<BF16>()[h] = to_bf16(h == 1 ? 2.f : 1.f);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = plan_op<NormRouterRoute>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  ASSERT_TRUE(plan.value().run(a, {}, device->stream()).ok());
  const double inverse = 1 / std::sqrt(12.5);
  const double wanted[] = {4 * inverse, 6 * inverse, 4 * inverse};
  for (int64_t e = 0; e < 3; ++e) {
    EXPECT_NEAR(a.logits.as<float>()[e], wanted[e], 1e-6);
    EXPECT_NEAR(a.normed.as<float>()[e], wanted[e], 1e-6);
  }
  EXPECT_EQ(a.ids.as<int32_t>()[0], 1);
}

// The bound admits logits computed from the norm before rounding, but not logits of x without a norm.
TEST(NormRouterRouteContract, LogitsMayBeOfTheNormBeforeItIsRounded) {
  NormRouterRoute::Problem p;
  p.router = {.route = {.tokens = 1, .experts = 1, .top_k = 1, .logits = DType::kF32}, .hidden = 64};
  HostArgs<NormRouterRoute> host(p, Spread::kContiguous);
  const NormRouterRoute::Args& a = host.args();
  Random random(4);
  Suite<NormRouterRoute>::fill(p, Fill::kNormal, host, random);
  double squares = 0, before = 0, raw = 0;
  for (int64_t h = 0; h < 64; ++h) squares += std::pow(load2(a.x, 0, h), 2);
  const double inverse = 1 / std::sqrt(squares / 64 + p.eps);
  for (int64_t h = 0; h < 64; ++h) {
    const double normed = load2(a.x, 0, h) * inverse * load(a.norm_weight, h);
    a.normed.as<BF16>()[h] = to_bf16(static_cast<float>(normed));
    before += normed * load2(a.w, 0, h), raw += load2(a.x, 0, h) * load2(a.w, 0, h);
  }
  const auto wrong = [&](double logit) {
    a.logits.as<float>()[0] = static_cast<float>(logit);
    for (const Expected& e : expected_given(p, a))
      if (e.slot == "logits") return compare(e, a.logits).wrong;
    return int64_t{-1};
  };
  EXPECT_EQ(wrong(before), 0);
  EXPECT_EQ(wrong(raw), 1);
}

}  // namespace
}  // namespace sluice::test
