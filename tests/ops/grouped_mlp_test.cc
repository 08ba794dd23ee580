#include "cases/grouped_mlp.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(GroupedMlp, Conformance, GroupedMlp);

// GroupedMlp is ExpertMlp without grouping and combining. Problems that are legal for ExpertMlp are legal
// here, and terms added to the experts' outputs make no difference.
TEST(GroupedMlpContract, IsTheMiddleOfExpertMlp) {
  Random random(3);
  for (int round = 0; round < 500; ++round) {
    const ExpertMlp::Problem p = Suite<ExpertMlp>::random(random);
    const GroupedMlp::Problem middle = GroupedMlp::of(p);
    if (ExpertMlp::validate(p).accepted()) {
      EXPECT_TRUE(GroupedMlp::validate(middle).accepted()) << fields_text(middle);
    }
    EXPECT_EQ(fields_text(GroupedMlp::up(middle)), fields_text(ExpertMlp::up(p)));
    EXPECT_EQ(fields_text(GroupedMlp::down(middle)), fields_text(ExpertMlp::down(p)));
    EXPECT_EQ(fields_text(middle).find("residual"), std::string::npos);
  }
}

// The row's expert gives h = relu(x up)^2 = (9, 1); its down doubles the first column and drops the second.
TEST(GroupedMlpContract, ByHand) {
  ExpertMlp::Problem m{.tokens = 2,
                       .slots = 1,
                       .experts = 2,
                       .hidden = 2,
                       .intermediate = 2,
                       .x = DType::kF32,
                       .w = DType::kBF16,
                       .g = DType::kF32,
                       .layout = WeightLayout::kRowMajor,
                       .act = Activation::kRelu2,
                       .down_bias = true};
  const GroupedMlp::Problem p = GroupedMlp::of(m);
  HostArgs<GroupedMlp> host(p, Spread::kContiguous);
  const GroupedMlp::Args& a = host.args();
  set_each(a.x, [](int64_t t, int64_t c) { return t == 0 ? 7 : c == 0 ? 3 : 1; });
  set_each(a.up, [](int64_t, int64_t i) { return i % 3 == 0 ? 1 : 0; });
  set_each(a.down, [](int64_t e, int64_t i) { return e == 1 && i == 0 ? 2 : 0; });
  set_each(a.down_bias, [](int64_t e, int64_t) { return static_cast<double>(e); });
  const auto put = [](const Tensor& t, std::initializer_list<int32_t> values) {
    std::copy(values.begin(), values.end(), t.as<int32_t>());
  };
  // Row 0 is the second token's and belongs to expert 1; row 1 is padding.
  put(a.row_begin, {0, 0, 1}), put(a.row_count, {0, 1}), put(a.order, {1, -1});
  set_each(a.g, [](int64_t, int64_t) { return -4; });
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = plan_op<GroupedMlp>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  EXPECT_FLOAT_EQ(a.g.as<float>()[0], 2 * 9 + 1);
  EXPECT_FLOAT_EQ(a.g.as<float>()[1], 1);
  EXPECT_FLOAT_EQ(a.g.as<float>()[2], -4);
  EXPECT_EQ(compare(reference(p, a)[0], a.g).wrong, 0);
}

}  // namespace
}  // namespace sluice::test
