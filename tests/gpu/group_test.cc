// Groups of GPUs. With one GPU in the machine, two devices share it.
#include "backends/backends.h"
#include "backends/ranks.h"
#include "gpu/gpu.h"

namespace sluice::test {
namespace {

class GpuGroup : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    int gpus = 0;
    ASSERT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
    for (int r = 0; r < std::clamp(gpus, 2, 8); ++r) {
      owned_.push_back(cuda::open_device({.index = r % gpus}).value());
      devices.push_back(owned_.back().get());
    }
    auto made = make_group(devices);
    ASSERT_TRUE(made.ok()) << made.status().message;
    group = std::move(made).value();
    std::printf("[   note   ] %zu ranks on %d GPUs\n", devices.size(), std::min(gpus, 8));
  }
  void TearDown() override {
    group.reset();
    owned_.clear();
  }

  std::vector<Device*> devices;
  std::unique_ptr<Group> group;
  const std::vector<std::string> ways = {"cuda.all_reduce_norm.words_sm90:once",
                                         "cuda.all_reduce_norm.words_sm90:twice"};

 private:
  std::vector<std::unique_ptr<Device>> owned_;
};

TEST_F(GpuGroup, AllRanksHaveTheSameBitsWithinTheBounds) {
  uint64_t seed = 1;
  for (const Case<AllReduceNorm>& test : ranks_cases()) {
    std::vector<std::vector<std::byte>> outputs;
    seed += 100;
    for (const std::string& way : ways) {
      RanksRun run(devices, test.problem, test.fill, test.spread, seed);
      run.check(way, way + ", " + test.why + " (" + fields_text(test.problem) + ")");
      if (HasFatalFailure()) return;
      outputs.push_back(run.outputs());
    }
    EXPECT_EQ(outputs[0], outputs[1]) << test.why << " (" << fields_text(test.problem) << ")";
  }
}

// Ranks run ahead of each other, and windows are used again and again.
TEST_F(GpuGroup, ManyRunsInARowGiveEqualBits) {
  for (const std::string& way : ways)
    for (const int64_t tokens : {1, 64, 300}) {
      std::vector<std::byte> first;
      for (int round = 0; round < 5; ++round) {
        RanksRun run(devices, {.tokens = tokens}, Fill::kNormal, Spread::kContiguous, 7);
        for (const Status& status : run.run(way, 500)) ASSERT_TRUE(status.ok()) << status.message;
        run.expect_equal_ranks(way);
        if (round == 0) first = run.outputs();
        EXPECT_EQ(run.outputs(), first) << way << ", " << tokens << " tokens";
      }
    }
}

// Rank 1 enqueues nothing; the other ranks' kernels wait for it.
TEST_F(GpuGroup, AFailureOfOneRankEndsTheOthers) {
  const AllReduceNorm::Problem p{.tokens = 20, .ranks = std::ssize(devices)};
  std::vector<std::unique_ptr<HostArgs<AllReduceNorm>>> hosts;
  std::vector<std::unique_ptr<DeviceArgs<AllReduceNorm>>> args;
  for (Device* device : devices) {
    hosts.push_back(std::make_unique<HostArgs<AllReduceNorm>>(p, Spread::kContiguous));
    args.push_back(std::make_unique<DeviceArgs<AllReduceNorm>>(*device, *hosts.back()));
    ASSERT_TRUE(args.back()->upload(device->stream()).ok());
  }
  Device& waits = *devices[0];
  ASSERT_TRUE(make_plan<AllReduceNorm>(waits, p).value().run(args[0]->args(), {}, waits.stream()).ok());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group->stop(1, out_of_memory("no memory"));
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(waits.wait(waits.stream()).message, "rank 1: no memory");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  later.join();
  EXPECT_EQ(make_plan<AllReduceNorm>(waits, p).value().run(args[0]->args(), {}, waits.stream()).message,
            "rank 1: no memory");
  ASSERT_TRUE(group->recover().ok());
  RanksRun run(devices, {.tokens = 5}, Fill::kNormal, Spread::kContiguous, 3);
  run.check("", "after a failure");
}

TEST_F(GpuGroup, RecordingsCanBeReplayed) {
  for (const std::string& way : ways) {
    const AllReduceNorm::Problem p{.tokens = 70, .ranks = std::ssize(devices), .residual = false};
    std::vector<std::unique_ptr<HostArgs<AllReduceNorm>>> hosts;
    std::vector<std::unique_ptr<DeviceArgs<AllReduceNorm>>> args;
    std::vector<std::unique_ptr<Recording>> recordings;
    for (Device* device : devices) {
      Random random(args.size() + 1);
      hosts.push_back(std::make_unique<HostArgs<AllReduceNorm>>(p, Spread::kContiguous));
      Suite<AllReduceNorm>::fill(p, Fill::kNormal, *hosts.back(), random);
      if (hosts.size() > 1)
        std::memcpy(hosts.back()->find("weight")->start(), hosts[0]->find("weight")->start(),
                    static_cast<size_t>(hosts[0]->find("weight")->total_bytes()));
      args.push_back(std::make_unique<DeviceArgs<AllReduceNorm>>(*device, *hosts.back()));
      ASSERT_TRUE(args.back()->upload(device->stream()).ok());
      const auto plan = make_plan<AllReduceNorm>(*device, p, {.force = way});
      auto made = device->record(device->stream(),
                                 [&] { return plan.value().run(args.back()->args(), {}, device->stream()); });
      ASSERT_TRUE(made.ok()) << made.status().message;
      recordings.push_back(std::move(made).value());
    }
    std::vector<AllReduceNorm::Args> all;
    for (auto& host : hosts) all.push_back(host->args());
    const Expectations wanted = reference_of_ranks(p, all);
    for (int replay = 0; replay < 50; ++replay)
      for (size_t r = 0; r < devices.size(); ++r)
        ASSERT_TRUE(devices[r]->replay(*recordings[r], devices[r]->stream()).ok());
    for (size_t r = 0; r < devices.size(); ++r) {
      ASSERT_TRUE(args[r]->download(devices[r]->stream()).ok());
      for (const Expected& want : wanted) expect_within(want, *hosts[r]->find(want.slot), way);
    }
  }
}

}  // namespace
}  // namespace sluice::test
