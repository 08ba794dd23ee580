#include "cases/group_rows.h"

#include "harness/conformance.h"
#include "harness/numbers.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(GroupRows, Conformance, GroupRows);

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
  EXPECT_EQ(numbers(a.row_count), (Numbers{1, 0, 3}));
  EXPECT_EQ(numbers(a.row_begin), (Numbers{0, 2, 2, 6}));
  EXPECT_EQ(numbers(a.order), (Numbers{1, -1, 0, 3, 4, -1, -1, -1, -1}));
  EXPECT_EQ(numbers(a.position), (Numbers{2, 0, -1, 3, 4, -1}));
}

TEST(GroupRowsByHand, ListsTiles) {
  const GroupRows::Problem problem{.tokens = 13, .slots = 1, .experts = 3, .row_align = 16, .tile_rows = 8};
  EXPECT_EQ(GroupRows::tiles_max(problem), 3 + 1);
  HostArgs<GroupRows> host(problem, Spread::kContiguous);
  const auto& a = host.args();
  for (int i = 0; i < 13; ++i) a.ids.as<int32_t>()[i] = i < 2 ? 2 : i < 12 ? 0 : -1;
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<GroupRows>(*device, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  EXPECT_EQ(numbers(a.tile_count), (Numbers{3}));
  EXPECT_EQ(numbers(a.tiles), (Numbers{0, 0, 0, 8, 2, 16, -1, -1}));
}

// tiles_max bounds the tiles of any ids, and some ids reach the bound.
TEST(GroupRowsByHand, TheBoundOfTilesIsReached) {
  for (int64_t flat = 0; flat <= 60; ++flat) {
    const GroupRows::Problem p{.tokens = flat, .slots = 1, .experts = 5, .tile_rows = 8};
    int64_t most = 0;  // one row for each of `used` experts, all other rows for the first
    for (int64_t used = flat > 0 ? 1 : 0; used <= std::min<int64_t>(5, flat); ++used)
      most = std::max(most, used == 0 ? 0 : used - 1 + (flat - used + 1 + 7) / 8);
    EXPECT_EQ(GroupRows::tiles_max(p), most) << flat;
  }
}

}  // namespace
}  // namespace sluice::test
