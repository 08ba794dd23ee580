#include <thread>

#include "capi/support.h"
#include "sluice/group.h"

namespace sluice::test {
namespace {

struct GroupHandle {
  explicit GroupHandle(std::vector<sluice_device*> devices) {
    Message error;
    EXPECT_EQ(sluice_group_create(devices.data(), static_cast<int32_t>(devices.size()), 0, &group, error),
              SLUICE_OK)
        << error.str();
  }
  ~GroupHandle() { sluice_group_destroy(group); }
  GroupHandle(const GroupHandle&) = delete;
  GroupHandle& operator=(const GroupHandle&) = delete;
  sluice_group* group = nullptr;
};

// A row of eight columns on one rank.
struct Row {
  std::vector<float> x = std::vector<float>(8), stream = std::vector<float>(8, 1.f),
                     weight = std::vector<float>(8, 2.f), y = std::vector<float>(8);
  explicit Row(float value) { x.assign(8, value); }
  sluice_status run(const CapiDevice& device, Message& error) {
    sluice_plan* plan = nullptr;
    const sluice_status made = sluice_plan_create(
        device.device, "all_reduce_norm", "tokens=1 hidden=8 ranks=2 x=f32 w=f32", nullptr, &plan, error);
    if (made != SLUICE_OK) return made;
    const std::vector<sluice_arg> args = {{"x", CapiGate::tensor(x, {1, 8})},
                                          {"stream", CapiGate::tensor(stream, {1, 8})},
                                          {"weight", CapiGate::tensor(weight, {8})},
                                          {"y", CapiGate::tensor(y, {1, 8})}};
    const sluice_launch launch{args.data(), args.size(), nullptr, 0, device.stream()};
    const sluice_status ran = sluice_plan_run(plan, &launch, error);
    sluice_plan_destroy(plan);
    return ran;
  }
};

TEST(CapiGroup, AddsTheRowsOfTwoDevices) {
  CapiDevice first(1), second(1);
  const GroupHandle group({first.device, second.device});
  Row a(3), b(4);
  Message of_a, of_b;
  std::thread other([&] { EXPECT_EQ(b.run(second, of_b), SLUICE_OK) << of_b.str(); });
  EXPECT_EQ(a.run(first, of_a), SLUICE_OK) << of_a.str();
  other.join();
  for (const Row* row : {&a, &b}) {
    EXPECT_EQ(row->stream, std::vector<float>(8, 8.f));
    for (const float y : row->y) EXPECT_NEAR(y, 2, 1e-5);
  }
}

TEST(CapiGroup, AStoppedGroupSaysWhyUntilItRecovers) {
  CapiDevice first(1), second(1);
  const GroupHandle group({first.device, second.device});
  Message error;
  EXPECT_EQ(sluice_group_status(group.group, error), SLUICE_OK);
  sluice_group_stop(group.group, 1, "the other program ended");
  EXPECT_EQ(sluice_group_status(group.group, error), SLUICE_DEVICE);
  EXPECT_EQ(error.str(), "rank 1: the other program ended");
  Row a(3);
  EXPECT_EQ(a.run(first, error), SLUICE_DEVICE);
  EXPECT_EQ(sluice_wait(second.device, second.stream(), error), SLUICE_DEVICE);
  EXPECT_EQ(sluice_group_recover(group.group, error), SLUICE_OK);
  EXPECT_EQ(sluice_wait(second.device, second.stream(), error), SLUICE_OK);
}

TEST(CapiGroup, RefusesWhatCannotBeAGroup) {
  CapiDevice device(1);
  sluice_group* group = nullptr;
  Message error;
  sluice_device* const one[] = {device.device, nullptr};
  EXPECT_EQ(sluice_group_create(one, 1, 0, &group, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(error.str(), "count: wanted 2 to 8 devices, found 1");
  // The array is not read beyond a count that is out of range.
  for (const int32_t count : {-1, 9, 2000000000}) {
    EXPECT_EQ(sluice_group_create(one, count, 0, &group, error), SLUICE_INVALID_ARGUMENT);
    EXPECT_EQ(error.str(), "count: wanted 2 to 8 devices, found " + std::to_string(count));
  }
  EXPECT_EQ(sluice_group_create(one, 2, 0, &group, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_group_create(nullptr, 2, 0, &group, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_group_create(one, 1, 0, nullptr, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_group_status(nullptr, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_group_recover(nullptr, error), SLUICE_INVALID_ARGUMENT);
  sluice_group_stop(nullptr, 0, nullptr);
  sluice_group_destroy(nullptr);
  EXPECT_EQ(group, nullptr);
}

}  // namespace
}  // namespace sluice::test
