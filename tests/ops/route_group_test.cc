#include "cases/route_group.h"

#include "harness/conformance.h"
#include "harness/numbers.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(RouteGroup, Conformance, RouteGroup);

TEST(RouteGroupByHand, GroupsWhatItChose) {
  const RouteGroup::Problem problem{
      .route = {.tokens = 3, .experts = 4, .top_k = 2, .shared_slots = 1}, .row_align = 2, .tile_rows = 8};
  HostArgs<RouteGroup> host(problem, Spread::kContiguous);
  const auto& a = host.args();
  const float logits[] = {0, 9, 0, 5, 7, 6, 0, 0, 0, 3, 2, 0};
  std::copy(std::begin(logits), std::end(logits), a.logits.as<float>());
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = plan_op<RouteGroup>(*device, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  EXPECT_EQ(numbers(a.ids), (Numbers{1, 3, 4, 0, 1, 4, 1, 2, 4}));
  EXPECT_EQ(numbers(a.row_count), (Numbers{1, 3, 1, 1, 3}));
  EXPECT_EQ(numbers(a.row_begin), (Numbers{0, 2, 6, 8, 10, 14}));
  EXPECT_EQ(numbers(a.order), (Numbers{3, -1, 0, 4, 6, -1, 7, -1, 1, -1, 2, 5, 8, -1}));
  EXPECT_EQ(numbers(a.position), (Numbers{2, 8, 10, 0, 3, 11, 4, 6, 12}));
  EXPECT_EQ(numbers(a.tile_count), (Numbers{5}));
  EXPECT_EQ(numbers(a.tiles), (Numbers{0, 0, 1, 2, 2, 6, 3, 8, 4, 10}));
}

TEST(RouteGroupByHand, ExpertsToGroupByFollowTheScope) {
  RouteGroup::Problem p{.route = {.experts = 16, .top_k = 2, .shared_slots = 1}};
  EXPECT_EQ(RouteGroup::experts(p), 17);
  p.route.scope = ExpertScope::kRange, p.route.expert_begin = 4, p.route.expert_count = 4;
  EXPECT_EQ(RouteGroup::experts(p), 5);
  p.route.scope = ExpertScope::kMap;
  EXPECT_FALSE(RouteGroup::validate(p).accepted());
  p.mapped_experts = 20;
  EXPECT_TRUE(RouteGroup::validate(p).accepted());
  EXPECT_EQ(RouteGroup::experts(p), 20);
  p.route.scope = ExpertScope::kAll;
  EXPECT_NE(RouteGroup::validate(p).line().find("mapped_experts=20"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
