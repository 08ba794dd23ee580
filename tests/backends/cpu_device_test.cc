#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "backends/backends.h"
#include "backends/cpu/device.h"
#include "backends/cpu/memory.h"
#include "backends/cpu/pool.h"
#include "dispatch/plan.h"

namespace sluice::test {

TEST(ThreadPool, VisitsEveryIndexOnce) {
  for (int threads : {1, 2, 7}) {
    cpu::ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 63, 1000}) {
      for (int64_t grain : {1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        pool.run(count, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i) visits[static_cast<size_t>(i)].fetch_add(1);
        });
        for (const auto& v : visits) EXPECT_EQ(v.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  cpu::ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round)
        pool.run(16, 1, [&](int64_t begin, int64_t end, int) { sum.fetch_add(end - begin); });
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 200 * 16);
}

TEST(CpuDevice, RefusesAnAbsurdNumberOfThreads) {
  const auto device = cpu::open_device({.threads = 100000});
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.status().message.find("threads: wanted 0 (all) to 1024, found 100000"), std::string::npos);
}

TEST(CpuDevice, SaysWhenThereIsNoMemory) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto block = device->allocate(~size_t{0} - 4096);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.status().code, Code::kOutOfMemory);
}

TEST(CpuDevice, LogsOneLineWhenItOpens) {
  std::vector<std::string> lines;
  const Log log{
      .sink = [](void* out, LogLevel,
                 const char* line) { static_cast<std::vector<std::string>*>(out)->emplace_back(line); },
      .context = &lines};
  ASSERT_TRUE(cpu::open_device({.threads = 2, .log = log}).ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("cpu (2 threads; "), std::string::npos);
}

// Recorded work does not run during recording; it runs at each replay, on the memory's contents at that time.
TEST(CpuDevice, RecordsAndReplays) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const RouterGemm::Problem problem{
      .tokens = 1, .experts = 2, .hidden = 2, .x = DType::kF32, .w = DType::kF32};
  float x[2] = {1, 2}, w[4] = {1, 0, 0, 1}, y[2] = {-1, -1};
  const RouterGemm::Args args{.x = make_tensor(x, DType::kF32, {1, 2}),
                              .w = make_tensor(w, DType::kF32, {2, 2}),
                              .bias = {},
                              .y = make_tensor(y, DType::kF32, {1, 2})};
  const auto plan = make_plan<RouterGemm>(*device, problem).value();
  const Stream stream = device->stream();
  auto recording = device->record(stream, [&] { return plan.run(args, {}, stream); });
  ASSERT_TRUE(recording.ok());
  EXPECT_EQ(y[0], -1);
  x[1] = 5;
  ASSERT_TRUE(device->replay(*recording.value(), stream).ok());
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[1], 5);
}

TEST(CpuDevice, KeepsWorkingAfterARecordingFailed) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto failed = device->record(device->stream(), [] { return invalid("no"); });
  EXPECT_EQ(failed.status().message, "no");
  EXPECT_THROW((void)device->record(device->stream(), []() -> Status { throw 1; }), int);
  int from = 3, to = 0;
  ASSERT_TRUE(device->copy(&to, &from, sizeof to, device->stream()).ok());
  EXPECT_EQ(to, 3);
}

TEST(CpuMemory, ReadsWhatLinuxSays) {
  EXPECT_EQ(cpu::meminfo_available("MemTotal: 24 kB\nMemAvailable:    2048 kB\n"), 2 << 20);
  EXPECT_EQ(cpu::meminfo_available("MemTotal: 24 kB\n"), -1);
  EXPECT_EQ(cpu::cgroup_left("max\n", "77\n", ""), -1);
  EXPECT_EQ(cpu::cgroup_left("1000\n", "700\n", "anon 5\ninactive_file 100\n"), 400);
  EXPECT_EQ(cpu::cgroup_left("1000\n", "1200\n", ""), 0);
  EXPECT_EQ(cpu::cgroup_left("", "", ""), -1);
  EXPECT_GT(cpu::open_device({}).value()->free_bytes(), 1 << 20);
}

TEST(OpenDevice, OpensCudaOrSaysWhatIsMissing) {
  const auto device = open_device({.backend = Backend::kCuda});
  if (device.ok()) {
    EXPECT_EQ(device.value()->info().sm, 90);
    return;
  }
  EXPECT_EQ(device.status().code, Code::kUnsupported);
  EXPECT_EQ(device.status().message.find("cuda: wanted"), 0u) << device.status().message;
  EXPECT_NE(device.status().message.find("found"), std::string::npos) << device.status().message;
}

}  // namespace sluice::test
