#include "cases/lora_delta.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(LoraDelta, Conformance, LoraDelta);

// A = [[1, 2], [0, 1]], B = [[1, 1], [2, 0], [0, -1]], x = [3, 4]: A x = [11, 4], B A x = [15, 22, -4].
TEST(LoraDeltaByHand, AddsTheScaledUpdateToTokensThatHaveAnAdapter) {
  const LoraDelta::Problem problem{.tokens = 2, .features = 3, .hidden = 2, .rank = 2, .adapters = 2};
  HostArgs<LoraDelta> host(problem, Spread::kContiguous);
  const auto& a = host.args();
  constexpr double kA[] = {1, 2, 0, 1}, kB[] = {1, 1, 2, 0, 0, -1};
  const auto second = [](const double* values) {  // the first adapter holds NaN
    return [values](int64_t i, int64_t j) { return i == 1 ? values[j] : std::nan(""); };
  };
  set_each(a.a, second(kA));
  set_each(a.b, second(kB));
  set_each(a.scale, [](int64_t i, int64_t) { return i == 1 ? 0.5 : std::nan(""); });
  set_each(a.x, [](int64_t, int64_t h) { return 3 + h; });
  set_each(a.adapter, [](int64_t t, int64_t) { return t == 0 ? 1 : -1; });
  set_each(a.y, [](int64_t, int64_t) { return 100; });
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<LoraDelta>(*device, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  const double want[] = {107.5, 111, 98, 100, 100, 100};
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(load(a.y, i), want[i]) << i;
}

}  // namespace sluice::test
