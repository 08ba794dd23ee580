// Work on a caller's stream, including while the caller captures a graph.
#include "dispatch/plan.h"
#include "gpu/gpu.h"
#include "ops/group_rows.h"
#include "ops/router_gemm.h"
#include "sluice/sluice.h"

namespace sluice::test {
namespace {

// Kernels for this problem use grid-barrier words; a wrapped stream has its own words.
constexpr GroupRows::Problem kGroup{.tokens = 4096, .slots = 4, .experts = 128};

// The problem's tensors on the device. Ids are inputs; outputs are compared byte by byte after a run.
class Grouping {
 public:
  explicit Grouping(Device& device) : device_(device), plan_(make_plan<GroupRows>(device, kGroup).value()) {
    GroupRows::slots(kGroup, [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
      if (!spec.used) return;
      Tensor t{.dtype = spec.dtype, .where = Backend::kCuda, .rank = static_cast<int8_t>(spec.rank)};
      int64_t stride = 1;
      for (int i = spec.rank - 1; i >= 0; --i) {
        t.shape[i] = spec.shape[i], t.stride[i] = stride;
        stride *= spec.shape[i];
      }
      const auto bytes = static_cast<size_t>(bytes_of(spec.dtype, stride));
      memory_.push_back(std::make_unique<Loan>(device, bytes));
      memory_.back()->clear();
      t.data = memory_.back()->data();
      args_.*member = t;
      if (spec.role != Role::kIn) outputs_.push_back(memory_.back().get());
    });
    std::vector<int32_t> ids(static_cast<size_t>(kGroup.tokens * kGroup.slots));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 128);
    EXPECT_TRUE(device.copy(args_.ids.data, ids.data(), ids.size() * sizeof(int32_t), device.stream()).ok());
    EXPECT_TRUE(device.wait(device.stream()).ok());
    scratch_ = std::make_unique<Loan>(device, plan_.workspace_bytes() + 1);
  }
  Status run(Stream stream) { return plan_.run(args_, {scratch_->data(), plan_.workspace_bytes()}, stream); }
  void forget() {
    for (const Loan* out : outputs_) out->clear();
  }
  std::vector<std::byte> result() {
    std::vector<std::byte> all;
    for (const Loan* out : outputs_) {
      const size_t at = all.size();
      all.resize(at + out->bytes());
      EXPECT_EQ(cudaMemcpy(all.data() + at, out->data(), out->bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    }
    return all;
  }

 private:
  Device& device_;
  Plan<GroupRows> plan_;
  GroupRows::Args args_;
  std::vector<std::unique_ptr<Loan>> memory_;
  std::vector<const Loan*> outputs_;
  std::unique_ptr<Loan> scratch_;
};

class GpuStream : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(cudaStreamCreateWithFlags(&mine_, cudaStreamNonBlocking), cudaSuccess);
    const auto wrapped = gpu().wrap(mine_);
    ASSERT_TRUE(wrapped.ok()) << wrapped.status().message;
    wrapped_ = wrapped.value();
  }
  void TearDown() override {
    if (!mine_) return;
    gpu().unwrap(wrapped_);
    EXPECT_EQ(cudaStreamDestroy(mine_), cudaSuccess);
  }
  cudaStream_t mine_ = nullptr;
  Stream wrapped_;
};

TEST_F(GpuStream, GetsTheWorkAndGivesTheSameBits) {
  Grouping grouping(gpu());
  ASSERT_TRUE(grouping.run(stream()).ok());
  ASSERT_TRUE(gpu().wait(stream()).ok());
  const std::vector<std::byte> want = grouping.result();
  grouping.forget();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(grouping.run(wrapped_).ok());
  ASSERT_EQ(cudaStreamSynchronize(mine_), cudaSuccess);
  EXPECT_EQ(grouping.result(), want);
}

// In a capture of the strictest mode, any call that allocates or waits invalidates the capture.
TEST_F(GpuStream, IsCapturedByItsCaller) {
  Grouping grouping(gpu());
  ASSERT_TRUE(grouping.run(stream()).ok());
  ASSERT_TRUE(gpu().wait(stream()).ok());
  const std::vector<std::byte> want = grouping.result();
  grouping.forget();
  const std::vector<std::byte> empty = grouping.result();
  ASSERT_EQ(cudaStreamBeginCapture(mine_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status ran = grouping.run(wrapped_);
  EXPECT_NE(gpu().wait(wrapped_).message.find("being captured"), std::string::npos);
  const auto recorded = gpu().record(wrapped_, [] { return Status{}; });
  EXPECT_NE(recorded.status().message.find("being captured"), std::string::npos);
  EXPECT_NE(gpu().wrap(mine_).status().message.find("being captured"), std::string::npos);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(mine_, &graph), cudaSuccess);
  ASSERT_TRUE(ran.ok()) << ran.message;
  EXPECT_EQ(grouping.result(), empty) << "capturing must run nothing";
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    grouping.forget();
    ASSERT_EQ(cudaGraphLaunch(exec, mine_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(mine_), cudaSuccess);
    EXPECT_EQ(grouping.result(), want) << "launch " << i;
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

// A stream wrapped at start-up is retargeted to a stream that is already being captured, and keeps its
// counters.
TEST_F(GpuStream, IsRetargetedInACapture) {
  Grouping grouping(gpu());
  ASSERT_TRUE(grouping.run(wrapped_).ok());
  ASSERT_TRUE(gpu().wait(wrapped_).ok());
  const std::vector<std::byte> want = grouping.result();
  grouping.forget();
  cudaStream_t later = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&later, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(later, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status aimed = gpu().retarget(wrapped_, later), ran = grouping.run(wrapped_);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(later, &graph), cudaSuccess);
  ASSERT_TRUE(aimed.ok()) << aimed.message;
  ASSERT_TRUE(ran.ok()) << ran.message;
  size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_GT(nodes, 0u) << "the work is not in the captured graph";
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  ASSERT_TRUE(gpu().retarget(wrapped_, mine_).ok());
  for (int i = 0; i < 3; ++i) {
    grouping.forget();
    ASSERT_EQ(cudaGraphLaunch(exec, mine_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(mine_), cudaSuccess);
    EXPECT_EQ(grouping.result(), want) << "launch " << i;
  }
  EXPECT_NE(gpu().retarget(stream(), mine_).message.find("wanted a stream that this device has wrapped"),
            std::string::npos);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(later), cudaSuccess);
}

// Memory for a second wrapped stream is allocated while another stream of the process is being captured.
TEST_F(GpuStream, WrappingEndsNoOtherCapture) {
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal), cudaSuccess);
  const auto again = gpu().wrap(mine_);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaSuccess);
  ASSERT_TRUE(again.ok()) << again.status().message;
  EXPECT_NE(again.value().native, wrapped_.native);
  gpu().unwrap(again.value());
  EXPECT_TRUE(!graph || cudaGraphDestroy(graph) == cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(GpuStream, OfAnotherGpuIsRefused) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "wanted 2 GPUs, found " << count;
  auto second = cuda::open_device({.index = 1});
  ASSERT_TRUE(second.ok()) << second.status().message;
  EXPECT_NE(
      second.value()->wrap(mine_).status().message.find("wanted a stream of GPU 1, found a stream of GPU 0"),
      std::string::npos);
  EXPECT_EQ(
      Grouping(*second.value()).run(wrapped_).message,
      "group_rows: stream: wanted a stream of cuda device 1 (the plan's device), found a stream of device 0");
  // The thread's current GPU is still the first GPU, but work for the second GPU runs there.
  Grouping there(*second.value()), here(gpu());
  ASSERT_TRUE(there.run(second.value()->stream()).ok());
  ASSERT_TRUE(second.value()->wait(second.value()->stream()).ok());
  ASSERT_TRUE(here.run(wrapped_).ok());
  ASSERT_TRUE(gpu().wait(wrapped_).ok());
  EXPECT_EQ(there.result(), here.result());
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
}

// A stream object with another GPU's index suffices, because nothing is launched.
TEST_F(GpuStream, OfAnotherGpuIsRefusedByAPlan) {
  Grouping grouping(gpu());
  grouping.forget();
  const std::vector<std::byte> empty = grouping.result();
  cuda::Queue other = cuda::queue_of(wrapped_);
  other.device = 1;
  EXPECT_EQ(
      grouping.run({Backend::kCuda, &other}).message,
      "group_rows: stream: wanted a stream of cuda device 0 (the plan's device), found a stream of device 1");
  ASSERT_TRUE(gpu().wait(wrapped_).ok());
  EXPECT_EQ(grouping.result(), empty);
}

TEST_F(GpuStream, OpeningByIndexNamesTheCount) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
  options.backend = SLUICE_CUDA;
  options.index = count;
  char message[256] = "";
  sluice_text error{message, sizeof message, 0};
  sluice_device* device = nullptr;
  EXPECT_EQ(sluice_open(&options, &device, &error), SLUICE_UNSUPPORTED);
  EXPECT_EQ(std::string(message), "cuda: wanted GPU " + std::to_string(count) + ", found " +
                                      std::to_string(count) + " (counted from 0)");
  EXPECT_EQ(device, nullptr);
}

}  // namespace
}  // namespace sluice::test
