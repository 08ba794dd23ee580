#include "cases/all_reduce_norm.h"

#include "backends/backends.h"
#include "backends/ranks.h"
#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(AllReduceNorm, Conformance, AllReduceNorm);

// CPU devices of one process, in a group.
struct CpuRanks {
  explicit CpuRanks(int ranks, int threads = 1) {
    for (int r = 0; r < ranks; ++r) {
      owned.push_back(cpu::open_device({.threads = threads}).value());
      devices.push_back(owned.back().get());
    }
    group = make_group(devices).value();
  }
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices;
  std::unique_ptr<Group> group;
};

// Two ranks of two columns: the sum is in rank order, and the norm is computed from the rounded stream.
TEST(AllReduceNormByHand, AddsRanksThenTheStream) {
  const AllReduceNorm::Problem p{.tokens = 1, .hidden = 8, .ranks = 2, .eps = 0x1p-100};
  CpuRanks ranks(2);
  std::vector<std::unique_ptr<HostArgs<AllReduceNorm>>> hosts;
  for (int r = 0; r < 2; ++r) {
    AllReduceNorm::Args& a =
        hosts.emplace_back(std::make_unique<HostArgs<AllReduceNorm>>(p, Spread::kContiguous))->args();
    set_each(a.x, [&](int64_t, int64_t i) { return r == 0 ? 1 : i % 2 ? 2 : 1; });
    set_each(a.stream, [](int64_t, int64_t) { return 1; });
    for (int64_t i = 0; i < p.hidden; ++i) a.weight.as<BF16>()[i] = to_bf16(2.f);
  }
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Device& device = *ranks.devices[r];
      const auto plan = make_plan<AllReduceNorm>(device, p);
      ASSERT_TRUE(plan.ok() && plan.value().run(hosts[r]->args(), {}, device.stream()).ok());
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& host : hosts)
    for (int64_t i = 0; i < p.hidden; ++i) {
      EXPECT_EQ(load2(host->args().stream, 0, i), i % 2 ? 4 : 3);
      EXPECT_NEAR(load2(host->args().y, 0, i), 2 * (i % 2 ? 4 : 3) / std::sqrt(12.5), 1e-2);
    }
}

TEST(AllReduceNorm, AllRanksHaveTheSameBitsWithinTheBounds) {
  for (const int n : {2, 3, 8}) {
    CpuRanks ranks(n);
    uint64_t seed = 1;
    for (const Case<AllReduceNorm>& test : ranks_cases()) {
      if (n > 2 && test.problem.tokens > 16) continue;
      RanksRun run(ranks.devices, test.problem, test.fill, test.spread, seed += 100);
      run.check("", std::to_string(n) + " ranks, " + test.why + " (" + fields_text(test.problem) + ")");
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(AllReduceNorm, ManyRunsInARowGiveEqualBits) {
  CpuRanks ranks(2, 2);
  std::vector<std::byte> first;
  for (int round = 0; round < 3; ++round) {
    RanksRun run(ranks.devices, {.tokens = 5, .hidden = 264}, Fill::kNormal, Spread::kContiguous, 7);
    for (const Status& status : run.run("", 300)) ASSERT_TRUE(status.ok()) << status.message;
    run.expect_equal_ranks("300 runs");
    if (round == 0) first = run.outputs();
    EXPECT_EQ(run.outputs(), first);
  }
}

Status run_alone(Device& device, int64_t ranks) {
  const AllReduceNorm::Problem p{.tokens = 2, .hidden = 64, .ranks = ranks};
  HostArgs<AllReduceNorm> host(p, Spread::kContiguous);
  const auto plan = make_plan<AllReduceNorm>(device, p);
  return plan.ok() ? plan.value().run(host.args(), {}, device.stream()) : plan.status();
}

TEST(Group, RefusesDevicesThatDoNotFit) {
  const auto a = cpu::open_device({.threads = 1}).value(), b = cpu::open_device({.threads = 1}).value();
  Device* const one[] = {a.get()};
  Device* const twice[] = {a.get(), a.get()};
  Device* const both[] = {a.get(), b.get()};
  EXPECT_EQ(make_group(one).status().message, "group: wanted 2 to 8 devices, found 1");
  EXPECT_EQ(make_group(twice).status().message,
            "cpu: group: rank 1: wanted a different device for each rank, found the device of rank 0");
  EXPECT_EQ(make_group(both, {.row_bytes = 0}).status().message,
            "group: row_bytes: wanted 1 to 32768, found 0");
  const auto group = make_group(both);
  ASSERT_TRUE(group.ok()) << group.status().message;
  EXPECT_EQ(make_group(both).status().message,
            "cpu: group: rank 0: wanted a device outside any group, found one that is in a group");
  EXPECT_EQ(run_alone(*a, 3).message, "all_reduce_norm: wanted a device in a group of 3, found a group of 2");
}

TEST(Group, ADeviceLeavesItsGroupAtTheEnd) {
  CpuRanks ranks(2);
  ranks.group.reset();
  EXPECT_EQ(run_alone(*ranks.devices[0], 2).message,
            "all_reduce_norm: wanted a device in a group of 2, found none");
  EXPECT_TRUE(make_group(ranks.devices).ok());
}

// Rank 1 fails before it exchanges anything; rank 0 waits for it.
TEST(Group, AFailureOfOneRankEndsTheOthers) {
  CpuRanks ranks(2);
  Status waiting;
  std::thread other([&] { waiting = run_alone(*ranks.devices[0], 2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks.group->stop(1, out_of_memory("no memory"));
  ranks.group->stop(0, invalid("a later failure"));
  other.join();
  EXPECT_EQ(waiting.code, Code::kOutOfMemory);
  EXPECT_EQ(waiting.message, "rank 1: no memory");
  for (Device* device : ranks.devices) {
    EXPECT_EQ(device->wait(device->stream()).message, "rank 1: no memory");
    EXPECT_EQ(run_alone(*device, 2).message, "rank 1: no memory");
  }
  ASSERT_TRUE(ranks.group->recover().ok());
  RanksRun run(ranks.devices, {.tokens = 5, .hidden = 64}, Fill::kNormal, Spread::kContiguous, 3);
  run.check("", "after a failure");
}

TEST(Group, RanksWithDifferentProblemsEndInAnError) {
  CpuRanks ranks(2);
  Status status[2];
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      const AllReduceNorm::Problem p{.tokens = 2 + static_cast<int64_t>(r), .hidden = 64, .ranks = 2};
      HostArgs<AllReduceNorm> host(p, Spread::kContiguous);
      Device& device = *ranks.devices[r];
      status[r] = make_plan<AllReduceNorm>(device, p).value().run(host.args(), {}, device.stream());
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& s : status)
    EXPECT_NE(s.message.find("all_reduce_norm: wanted the problem of rank "), std::string::npos) << s.message;
}

}  // namespace
}  // namespace sluice::test
