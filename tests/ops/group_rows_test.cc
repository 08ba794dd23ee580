#include "cases/group_rows.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(GroupRows, Conformance, GroupRows);

std::vector<int32_t> numbers(const Tensor& t) { return {t.as<int32_t>(), t.as<int32_t>() + elements_of(t)}; }

TEST(GroupRowsByHand, IsStableAndAligned) {
  const GroupRows::Problem problem{.tokens = 3, .slots = 2, .experts = 3, .row_align = 2};
  HostArgs<GroupRows> host(problem, Spread::kContiguous);
  const auto& a = host.args();
  const int32_t ids[] = {2, 0, -1, 2, 2, 3};
  std::copy(std::begin(ids), std::end(ids), a.ids.as<int32_t>());
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<GroupRows>(*device, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  using Numbers = std::vector<int32_t>;
  EXPECT_EQ(numbers(a.row_count), (Numbers{1, 0, 3}));
  EXPECT_EQ(numbers(a.row_begin), (Numbers{0, 2, 2, 6}));
  EXPECT_EQ(numbers(a.order), (Numbers{1, -1, 0, 3, 4, -1, -1, -1, -1}));
  EXPECT_EQ(numbers(a.position), (Numbers{2, 0, -1, 3, 4, -1}));
}

}  // namespace
}  // namespace sluice::test
