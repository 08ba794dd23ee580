// The CUDA device itself: memory, streams, recordings, and messages of GPU faults.
#include <cstring>
#include <numeric>

#include "dispatch/plan.h"
#include "gpu/gpu.h"
#include "harness/cases.h"
#include "ops/combine.h"

namespace sluice::test {
namespace {

class GpuDevice : public OnGpu {};

constexpr Combine::Problem kCopyRows{.tokens = 64,
                                     .slots = 1,
                                     .rows = 64,
                                     .hidden = 256,
                                     .g = DType::kF32,
                                     .y = DType::kF32,
                                     .weighted = false};

// y[t] = g[position[t]] on the device, with plain memory.
struct Gather {
  Gather(Device& device, const std::vector<float>& g, const std::vector<int32_t>& position)
      : memory(device, 2 * g.size() * sizeof(float) + position.size() * sizeof(int32_t)), device(device) {
    float* at = reinterpret_cast<float*>(memory.data());
    args.g = make_tensor(at, DType::kF32, {kCopyRows.rows, kCopyRows.hidden}, Backend::kCuda);
    args.y = make_tensor(at + g.size(), DType::kF32, {kCopyRows.tokens, kCopyRows.hidden}, Backend::kCuda);
    args.position = make_tensor(at + 2 * g.size(), DType::kI32, {kCopyRows.tokens, 1}, Backend::kCuda);
    EXPECT_TRUE(device.copy(args.g.data, g.data(), g.size() * sizeof(float), device.stream()).ok());
    EXPECT_TRUE(
        device.copy(args.position.data, position.data(), position.size() * sizeof(int32_t), device.stream())
            .ok());
  }
  std::vector<float> result() {
    std::vector<float> out(static_cast<size_t>(elements_of(args.y)));
    EXPECT_TRUE(device.copy(out.data(), args.y.data, out.size() * sizeof(float), device.stream()).ok());
    EXPECT_TRUE(device.wait(device.stream()).ok());
    return out;
  }
  Loan memory;
  Device& device;
  Combine::Args args;
};

std::vector<float> numbers() {
  std::vector<float> out(static_cast<size_t>(kCopyRows.rows * kCopyRows.hidden));
  std::iota(out.begin(), out.end(), 1.f);
  return out;
}
std::vector<int32_t> rows_from(int first) {
  std::vector<int32_t> out(static_cast<size_t>(kCopyRows.tokens));
  std::iota(out.begin(), out.end(), first);
  for (int32_t& row : out) row %= static_cast<int32_t>(kCopyRows.rows);
  return out;
}

TEST_F(GpuDevice, DescribesAHopperGpu) {
  const DeviceInfo& info = gpu().info();
  EXPECT_EQ(info.backend, Backend::kCuda);
  EXPECT_EQ(info.sm, 90);
  EXPECT_GE(info.cores, 16);
  EXPECT_GT(info.mem_bytes_per_us, 1e6);
  EXPECT_GT(gpu().free_bytes(), int64_t{1} << 30);
}

TEST_F(GpuDevice, OffersNoPlannedKernel) {
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : gpu().catalog().table<Op>()) EXPECT_FALSE(c->planned) << c->name;
  });
}

TEST_F(GpuDevice, RefusesMoreMemoryThanThereIs) {
  const auto memory = gpu().allocate(size_t{1} << 50);
  EXPECT_EQ(memory.status().code, Code::kOutOfMemory);
  EXPECT_NE(memory.status().message.find(std::to_string(size_t{1} << 50)), std::string::npos)
      << memory.status().message;
  Loan usable(gpu(), 1 << 20);  // the device still works
  EXPECT_NE(usable.data(), nullptr);
}

TEST_F(GpuDevice, RecordsWithoutRunningAndReplaysWithWhatIsThere) {
  const std::vector<float> g = numbers();
  Gather gather(gpu(), g, rows_from(0));
  const auto plan = make_plan<Combine>(gpu(), kCopyRows);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  const std::vector<float> before(g.size(), -1);
  ASSERT_TRUE(gpu().copy(gather.args.y.data, before.data(), before.size() * sizeof(float), stream()).ok());
  auto recording = gpu().record(stream(), [&] { return plan.value().run(gather.args, {}, stream()); });
  ASSERT_TRUE(recording.ok()) << recording.status().message;
  EXPECT_EQ(gather.result(), before) << "recording must run nothing";
  ASSERT_TRUE(gpu().replay(*recording.value(), stream()).ok());
  EXPECT_EQ(gather.result(), g);
  // The same recording with other inputs.
  const std::vector<int32_t> shifted = rows_from(1);
  ASSERT_TRUE(
      gpu().copy(gather.args.position.data, shifted.data(), shifted.size() * sizeof(int32_t), stream()).ok());
  ASSERT_TRUE(gpu().replay(*recording.value(), stream()).ok());
  const std::vector<float> moved = gather.result();
  EXPECT_EQ(moved[0], g[static_cast<size_t>(kCopyRows.hidden)]);
}

TEST_F(GpuDevice, ARecordingThatFailsLeavesTheStreamUsable) {
  const std::vector<float> g = numbers();
  Gather gather(gpu(), g, rows_from(0));
  const auto plan = make_plan<Combine>(gpu(), kCopyRows);
  ASSERT_TRUE(plan.ok());
  const auto failed = gpu().record(stream(), [&]() -> Status {
    SLUICE_TRY(plan.value().run(gather.args, {}, stream()));
    return invalid("the caller changed its mind");
  });
  EXPECT_EQ(failed.status().message, "the caller changed its mind");
  const auto nested = gpu().record(
      stream(), [&]() -> Status { return gpu().record(stream(), [] { return Status{}; }).status(); });
  EXPECT_EQ(nested.status().code, Code::kInvalidArgument) << nested.status().message;
  ASSERT_TRUE(plan.value().run(gather.args, {}, stream()).ok());
  EXPECT_EQ(gather.result(), g);
}

TEST_F(GpuDevice, RefusesARecordingOfTheCpu) {
  struct Other final : Recording {};
  EXPECT_EQ(gpu().replay(Other{}, stream()).code, Code::kInvalidArgument);
}

TEST_F(GpuDevice, RefusesAStreamAndTensorsOfTheCpu) {
  const std::vector<float> g = numbers();
  Gather gather(gpu(), g, rows_from(0));
  const auto plan = make_plan<Combine>(gpu(), kCopyRows);
  ASSERT_TRUE(plan.ok());
  DeviceQueue nothing;
  EXPECT_NE(plan.value().run(gather.args, {}, {Backend::kCpu, &nothing}).message.find("stream"),
            std::string::npos);
  EXPECT_NE(plan.value().run(gather.args, {}, {Backend::kCuda, nullptr}).message.find("stream"),
            std::string::npos);
}

// Runs a kernel on an invalid address and exits the process with the status of wait().
void run_into_a_fault() {
  auto device = open_gpu().value();
  Gather gather(*device, numbers(), rows_from(0));
  const auto plan = make_plan<Combine>(*device, kCopyRows);
  Combine::Args args = gather.args;
  args.g.data = reinterpret_cast<void*>(uintptr_t{1} << 46);
  Status status = plan.value().run(args, {}, device->stream());
  if (status.ok()) status = device->wait(device->stream());
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::_Exit(status.code == Code::kDevice
                 ? 3
                 : 4);  // after the fault this process can no longer use or free anything of CUDA
}

TEST_F(GpuDevice, AFaultNamesTheKernelsSinceTheLastWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_into_a_fault(), ::testing::ExitedWithCode(3),
              "kernels enqueued since the last wait: cuda.combine.rows_sm90");
}

}  // namespace
}  // namespace sluice::test
