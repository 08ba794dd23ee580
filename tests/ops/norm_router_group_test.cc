#include "cases/norm_router_group.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(NormRouterGroup, Conformance, NormRouterGroup);

// Token t reads columns of its own: experts 2 and 0, then 0 and 1, then 2 and 1.
TEST(NormRouterGroupByHand, RowsOfAnExpertLieTogether) {
  NormRouterGroup::Problem p;
  p.front.router = {.route = {.tokens = 3, .experts = 3, .top_k = 2, .logits = DType::kF32},
                    .hidden = 3,
                    .x = DType::kF32,
                    .w = DType::kF32};
  HostArgs<NormRouterGroup> host(p, Spread::kContiguous);
  const NormRouterGroup::Args& a = host.args();
  constexpr float kX[3][3] = {{2, 1, 3}, {3, 2, 1}, {1, 2, 3}};
  set_each(a.x, [&](int64_t t, int64_t h) { return kX[t][h]; });
  set_each(a.w, [](int64_t e, int64_t h) { return e == h ? 1 : 0; });
  for (int64_t h = 0; h < 3; ++h) a.norm_weight.as<BF16>()[h] = to_bf16(1.f);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<NormRouterGroup>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  const auto numbers = [](const Tensor& t) {
    return std::vector<int32_t>(t.as<int32_t>(), t.as<int32_t>() + elements_of(t));
  };
  using Numbers = std::vector<int32_t>;
  EXPECT_EQ(numbers(a.ids), (Numbers{2, 0, 0, 1, 2, 1}));
  EXPECT_EQ(numbers(a.row_count), (Numbers{2, 2, 2}));
  EXPECT_EQ(numbers(a.row_begin), (Numbers{0, 2, 4, 6}));
  EXPECT_EQ(numbers(a.order), (Numbers{1, 2, 3, 5, 0, 4}));
  EXPECT_EQ(numbers(a.position), (Numbers{4, 0, 1, 2, 5, 3}));
}

}  // namespace
}  // namespace sluice::test
