#include "cases/expert_lora.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(ExpertLora, Conformance, ExpertLora);

// One expert's gated product with one feature: gate row 0 and up row 1. x = [3, 4]; A of gate = [1, 2], A of up = [0, 1], so u = 11 and 4.
// Without an adapter z' = z + bias = [100 + 1, 200 + 2]. With adapter 1, B = [1, 2] and scale 0.5: gate + 5.5, up + 4.
TEST(ExpertLoraByHand, GateAndUpGetTheUpdateOfTheirOwnInnerSums) {
  ExpertLora::Problem problem{
      .rows = 2, .tokens = 2, .slots = 1, .experts = 1, .features = 1, .width = 2, .rank = 1, .adapters = 2};
  problem.layout = WeightLayout::kRowMajor;
  problem.act = Activation::kSwiGluClamped;  // with alpha 0 the sigmoid is 1/2, so y = gate / 2 * up
  problem.alpha = 0, problem.limit = 1e9;
  problem.gathers = problem.split = problem.bias = true;
  problem.y = DType::kF32;
  HostArgs<ExpertLora> host(problem, Spread::kContiguous);
  const auto& a = host.args();
  set_each(a.x, [](int64_t, int64_t h) { return 3 + h; });
  set_each(a.z, [](int64_t, int64_t c) { return 100 + 100 * c; });
  set_each(a.bias, [](int64_t, int64_t c) { return 1 + c; });
  constexpr double kA[] = {1, 2, 0, 1};
  set_each(a.a, [&](int64_t i, int64_t j) {
    return i == 1 ? kA[j] : std::nan("");
  });  // the first adapter holds NaN
  set_each(a.b, [&](int64_t i, int64_t j) { return i == 1 ? 1 + j : std::nan(""); });
  set_each(a.scale, [](int64_t i, int64_t) { return i == 1 ? 0.5 : std::nan(""); });
  set_each(a.adapter, [](int64_t t, int64_t) { return t == 0 ? 1 : -1; });
  set_each(a.order, [](int64_t r, int64_t) { return r; });
  a.row_begin.as<int32_t>()[0] = 0, a.row_begin.as<int32_t>()[1] = 2, a.row_count.as<int32_t>()[0] = 2;
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<ExpertLora>(*device, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  EXPECT_EQ(load(a.y, 0), 106.5 / 2 * 206);
  EXPECT_EQ(load(a.y, 1), 101.0 / 2 * 202);
}

}  // namespace sluice::test
