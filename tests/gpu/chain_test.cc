// Kernels in chains of launches: the launches around them lag and release the next launch early, buffers are
// reused, and copies run meanwhile. Such conditions have corrupted results or hung other engines. Every
// candidate must give the bits that it gives alone.
#include <atomic>
#include <cstring>
#include <thread>

#include "dispatch/plan.h"
#include "gpu/chain_problems.h"
#include "gpu/gpu.h"
#include "gpu/neighbours.h"
#include "harness/run_case.h"

namespace sluice::test {
namespace {

// Copies between host and device on a separate stream for as long as the object lives.
class CopyTraffic {
 public:
  CopyTraffic() : thread_([this] { run(); }) {}
  ~CopyTraffic() {
    stop_ = true;
    thread_.join();
  }
  CopyTraffic(const CopyTraffic&) = delete;
  CopyTraffic& operator=(const CopyTraffic&) = delete;

 private:
  void run() {
    constexpr size_t kBytes = size_t{8} << 20;
    cudaStream_t stream = nullptr;
    void *host = nullptr, *device = nullptr;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return;
    if (cudaMallocHost(&host, kBytes) == cudaSuccess && cudaMalloc(&device, kBytes) == cudaSuccess) {
      std::memset(host, 0x3C, kBytes);
      while (!stop_) {
        cudaMemcpyAsync(device, host, kBytes, cudaMemcpyHostToDevice, stream);
        cudaMemcpyAsync(host, device, kBytes, cudaMemcpyDeviceToHost, stream);
        if (cudaStreamSynchronize(stream) != cudaSuccess) break;
      }
    }
    cudaFree(device);
    cudaFreeHost(host);
    cudaStreamDestroy(stream);
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Names of the tensors that kernels may read before they wait for the previous launch.
bool is_weight(std::string_view slot) {
  for (const char* name :
       {"w",       "weight", "norm_weight", "q_norm",     "k_norm",     "bias", "gate_bias",
        "a",       "b",      "scale",       "hash_table", "expert_map", "up",   "up_scale",
        "up_bias", "down",   "down_scale",  "down_bias",  "sinks",      "kv_b"})
    if (slot == name) return true;
  return false;
}

constexpr int kSets = 3;                // sets of inputs that share the same buffers, one after the other
constexpr long long kLagClocks = 6000;  // about 3 us, longer than most kernels under test

// One operation, kSets sets of inputs, and the output for each set.
template <class Op>
class Chain {
 public:
  Chain(Device& device, const Runnable<Op>& plan, const typename Op::Problem& problem, Fill fill)
      : device_(device), plan_(plan), scratch_(device, plan_.workspace_bytes + 1) {
    for (int set = 0; set < kSets; ++set) {
      hosts_.push_back(std::make_unique<HostArgs<Op>>(problem, Spread::kContiguous));
      Random random(static_cast<uint64_t>(set) + 1);
      Suite<Op>::fill(problem, fill, *hosts_.back(), random);
      if (set > 0)  // weights are the same in all sets
        for (size_t i = 0; i < hosts_[0]->tensors().size(); ++i)
          if (is_weight(hosts_[0]->tensors()[i].name))
            std::memcpy(memory(set, i).start(), memory(0, i).start(),
                        static_cast<size_t>(memory(0, i).total_bytes()));
    }
    live_ = std::make_unique<DeviceArgs<Op>>(device, *hosts_[0]);
    EXPECT_TRUE(live_->upload(device.stream()).ok());
    for (int set = 0; set < kSets; ++set)
      for (size_t i = 0; i < hosts_[0]->tensors().size(); ++i) {
        const auto bytes = static_cast<size_t>(memory(set, i).total_bytes());
        from_.push_back(std::make_unique<Loan>(device, bytes));
        to_.push_back(std::make_unique<Loan>(device, bytes));
        EXPECT_TRUE(device.copy(from_.back()->data(), memory(set, i).start(), bytes, device.stream()).ok());
      }
    EXPECT_TRUE(device.wait(device.stream()).ok());
  }

  // Runs each set with nothing else running: plain launches, and a wait after each.
  std::vector<std::vector<std::byte>> alone() {
    cuda::Queue& queue = cuda::queue_of(device_.stream());
    const bool dependent = std::exchange(queue.dependent, false);
    for (int set = 0; set < kSets; ++set) {
      EXPECT_TRUE(step(set, 0, false).ok());
      EXPECT_TRUE(device_.wait(device_.stream()).ok());
    }
    queue.dependent = dependent;
    return results();
  }

  // Runs all sets through the same buffers, one after the other.
  Status enqueue(bool mixed) {
    cuda::Queue& queue = cuda::queue_of(device_.stream());
    for (int set = 0; set < kSets; ++set) {
      queue.dependent = !mixed || set % 2 == 0;
      const Status status = step(set, kLagClocks, !mixed || set % 3 != 1);
      queue.dependent = true;
      SLUICE_TRY(status);
    }
    return {};
  }

  std::vector<std::vector<std::byte>> results() {
    std::vector<std::vector<std::byte>> out;
    for (int set = 0; set < kSets; ++set)
      for (size_t i = 0; i < hosts_[0]->tensors().size(); ++i) {
        if (memory(set, i).role() == Role::kIn) continue;
        const Loan& block = *to_[index(set, i)];
        out.emplace_back(block.bytes());
        EXPECT_TRUE(device_.copy(out.back().data(), block.data(), block.bytes(), device_.stream()).ok());
      }
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return out;
  }
  void forget() {
    for (auto& block : to_) EXPECT_EQ(cudaMemset(block->data(), 0xEE, block->bytes()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

 private:
  GuardedTensor& memory(int set, size_t i) { return *hosts_[static_cast<size_t>(set)]->tensors()[i].memory; }
  size_t index(int set, size_t i) const { return static_cast<size_t>(set) * hosts_[0]->tensors().size() + i; }
  void* live(size_t i) const {
    return static_cast<std::byte*>((live_->args().*(hosts_[0]->tensors()[i].member)).data) - kGuardBytes;
  }
  // Late writers of the inputs, the kernel, late readers of the outputs.
  Status step(int set, long long lag, bool dependent) {
    const cudaStream_t native = cuda::queue_of(device_.stream()).stream;
    const auto move = [&](void* to, const void* from, size_t bytes) {
      return cuda::check(lagging_copy(to, from, bytes / 4 * 4, lag, dependent, native), "a neighbour");
    };
    for (size_t i = 0; i < hosts_[0]->tensors().size(); ++i) {
      // Kernels of the chain also poison the outputs.
      if (is_weight(hosts_[0]->tensors()[i].name)) continue;
      SLUICE_TRY(move(live(i), from_[index(set, i)]->data(), from_[index(set, i)]->bytes()));
    }
    SLUICE_TRY(plan_.run(live_->args(), {scratch_.data(), plan_.workspace_bytes}, device_.stream()));
    for (size_t i = 0; i < hosts_[0]->tensors().size(); ++i) {
      if (memory(set, i).role() == Role::kIn) continue;
      SLUICE_TRY(move(to_[index(set, i)]->data(), live(i), to_[index(set, i)]->bytes()));
    }
    return {};
  }

  Device& device_;
  Runnable<Op> plan_;
  Loan scratch_;
  std::vector<std::unique_ptr<HostArgs<Op>>> hosts_;
  std::unique_ptr<DeviceArgs<Op>> live_;
  std::vector<std::unique_ptr<Loan>> from_, to_;
};

template <class Op>
class GpuChain : public OnGpu {};
using Chained =
    ::testing::Types<AdjustLogits, AllReduceNorm, Attention, Combine, CombineNorm, CountExperts, Embedding,
                     ExpertMlp, GroupedMlp, KvWrite, LatentAttention, Linear, LinearArgmax, RouterGemm,
                     RouterRoute, LoraDelta, ExpertLora, MaskLogits, NormRouterRoute, RmsNorm, Rope,
                     RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite, LatentNormRopeKvWrite, RouteTopk,
                     GroupRows, RouteGroup, Sample, TakeTokens, TopLogprobs>;
TYPED_TEST_SUITE(GpuChain, Chained, OpNames);

template <class Op, class F>
void for_each_way(Device& device, F f) {
  for (const auto& problem : Problems<Op>::list()) {
    const std::vector<Runnable<Op>> ways = all_ways<Op>(device, problem);
    for (const Runnable<Op>& way : ways) f(way, problem, way.name + " (" + fields_text(problem) + ")");
    EXPECT_FALSE(ways.empty()) << fields_text(problem);
  }
}

TYPED_TEST(GpuChain, LaggingNeighboursAndReusedBuffers) {
  using Op = TypeParam;
  Device& device = this->gpu();
  const CopyTraffic traffic;
  for_each_way<Op>(
      device, [&](const Runnable<Op>& way, const typename Op::Problem& problem, const std::string& where) {
        Chain<Op> chain(device, way, problem, Fill::kNormal);
        const auto wanted = chain.alone();
        auto recording = device.record(device.stream(), [&] { return chain.enqueue(false); });
        ASSERT_TRUE(recording.ok()) << where << ": " << recording.status().message;
        const int replays = count_from("SLUICE_CHAIN_REPLAYS", 20);
        for (int replay = 0; replay < replays; ++replay) {
          chain.forget();
          ASSERT_TRUE(device.replay(*recording.value(), device.stream()).ok());
          ASSERT_TRUE(chain.results() == wanted) << where << ": other bits in replay " << replay;
        }
        chain.forget();
        ASSERT_TRUE(chain.enqueue(false).ok());  // also without a graph
        ASSERT_TRUE(chain.results() == wanted) << where << ": other bits outside of a recording";
      });
}

TYPED_TEST(GpuChain, MixedDependentAndPlainLaunches) {
  using Op = TypeParam;
  Device& device = this->gpu();
  for_each_way<Op>(
      device, [&](const Runnable<Op>& way, const typename Op::Problem& problem, const std::string& where) {
        Chain<Op> chain(device, way, problem, Fill::kNormal);
        const auto wanted = chain.alone();
        auto recording = device.record(device.stream(), [&] { return chain.enqueue(true); });
        ASSERT_TRUE(recording.ok()) << where << ": " << recording.status().message;
        const int replays = count_from("SLUICE_CHAIN_REPLAYS", 10);
        for (int replay = 0; replay < replays; ++replay) {
          chain.forget();
          ASSERT_TRUE(device.replay(*recording.value(), device.stream()).ok());
          ASSERT_TRUE(device.replay(*recording.value(), device.stream()).ok());  // back to back
          ASSERT_TRUE(chain.results() == wanted) << where << ": other bits in replay " << replay;
        }
      });
}

}  // namespace
}  // namespace sluice::test
