// A kernel as dispatch sees it: a card of plain functions. No state.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/refusal.h"
#include "base/status.h"
#include "base/tensor.h"
#include "ops/op.h"
#include "ops/weight_layout.h"

namespace sluice {

// What a CPU can do, as bits of DeviceInfo::cpu_features.
enum CpuFeature : uint32_t {
  kAvx2 = 1u << 0,        // with FMA, BMI2 and F16C
  kAvx512 = 1u << 1,      // F, BW, CD, DQ, VL
  kAvx512Bf16 = 1u << 2,  // dot products of bf16 pairs
  kAmxBf16 = 1u << 3,     // 16 x 16 x 32 tiles of bf16, usable by this process
  kNeon = 1u << 4,
};
std::string features_text(uint32_t features);

// Plain data, so that a laptop can explain what an H200 would do.
struct DeviceInfo {
  std::string name;
  Backend backend = Backend::kCpu;
  int index = 0;  // which of the backend's devices: a plan runs on streams of that one
  int sm = 0;     // CUDA: compute capability times ten; 0 on a CPU
  int cores = 1;  // CUDA: multiprocessors; CPU: threads of the pool
  uint32_t cpu_features = 0;
  double mem_bytes_per_us = 0;   // read bandwidth of the whole device
  double bf16_flops_per_us = 0;  // sustained, dense
  double f32_flops_per_us = 0;
  double launch_us = 0;                           // what one more kernel costs in a recorded chain
  WeightLayout layout = WeightLayout::kPanels16;  // in which its dense kernels want weights
};
// "h200 (sm90, 132 SMs)", "cpu (2 threads; avx2 avx512 ...)"
std::string text(const DeviceInfo& device);

struct Policy {
  // The only kernels allowed: NAME or NAME:CONFIG, several parted by commas, at most one for each operation. A name belongs to
  // the operation in its middle (cuda.expert_gemm.mxfp4_tile_sm90). What is refused is an error, never a fallback.
  std::string force = {};
  bool batch_invariant = false;  // only kernels whose rows do not depend on each other
};

// One launch of a plan, in plain numbers that only the candidate that listed them reads.
struct KernelLaunch {
  std::array<int32_t, 6> value{};
  bool operator==(const KernelLaunch&) const = default;
};
using LaunchList = std::vector<KernelLaunch>;

// One way in which a candidate computes a problem.
struct Config {
  std::string name = {};  // unique among the candidate's; empty where there is only one
  Refusal refusal = {};   // why it cannot compute this problem
  double cost_us = 0;
  size_t workspace_bytes = 0;
  LaunchList launches = {};
};

template <class Op>
struct Candidate {
  std::string_view name;  // "cuda.router_gemm.splitk_sm90": backend.op.variant
  Backend backend = Backend::kCpu;
  // Must refuse every problem that the kernel gets wrong, with every reason. Sees only problems that
  // Op::validate accepts.
  Refusal (*supports)(const typename Op::Problem&, const DeviceInfo&) = nullptr;

  // Of a candidate with one configuration. cost_us is a model: nothing is timed at run time. enqueue() enqueues and returns. It
  // does not allocate, synchronise or read device memory, so it can be recorded.
  double (*cost_us)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  size_t (*workspace_bytes)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  Status (*enqueue)(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) = nullptr;

  // Of a candidate with several, in place of those: all configurations of a problem that supports() accepts, in a fixed order,
  // each with its cost or its refusal; and what enqueues the launches of one of them, and chooses nothing.
  std::vector<Config> (*configs)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  Status (*enqueue_config)(const typename Op::Problem&, std::span<const KernelLaunch>,
                           const typename Op::Args&, Workspace, Stream) = nullptr;
  // One launch in words, for explain.
  std::string (*launch_text)(const typename Op::Problem&, const KernelLaunch&) = nullptr;

  bool batch_invariant = false;  // a row's bits do not depend on the other rows
  // Only runs of the same configuration agree to the bit. Otherwise all configurations give the same bits.
  bool config_decides_bits = false;
  int alignment_bytes = 1;  // of every tensor's first element, beyond its own type's
  bool planned = false;     // a card without a kernel: explain shows it and says so, nothing runs it
};

// The variant of "cuda.router_gemm.splitk_sm90": splitk_sm90.
inline std::string_view variant_of(std::string_view candidate) {
  return candidate.substr(candidate.rfind('.') + 1);
}

// The configurations of any candidate: at least one.
template <class Op>
std::vector<Config> configs_of(const Candidate<Op>& c, const typename Op::Problem& problem,
                               const DeviceInfo& device) {
  if (c.configs) return c.configs(problem, device);
  return {
      Config{.cost_us = c.cost_us(problem, device), .workspace_bytes = c.workspace_bytes(problem, device)}};
}

// The accepted configuration that costs least, the first of equals; -1: all are refused.
inline int cheapest(const std::vector<Config>& configs) {
  int best = -1;
  for (size_t i = 0; i < configs.size(); ++i)
    if (configs[i].refusal.accepted() &&
        (best < 0 || configs[i].cost_us < configs[static_cast<size_t>(best)].cost_us))
      best = static_cast<int>(i);
  return best;
}

// Of a problem that the candidate takes.
template <class Op>
Config best_config(const Candidate<Op>& c, const typename Op::Problem& problem, const DeviceInfo& device) {
  std::vector<Config> configs = configs_of(c, problem, device);
  const int best = cheapest(configs);
  return best < 0 ? Config{} : std::move(configs[static_cast<size_t>(best)]);
}

template <class Op>
Status enqueue(const Candidate<Op>& c, const typename Op::Problem& problem,
               std::span<const KernelLaunch> launches, const typename Op::Args& args, Workspace workspace,
               Stream stream) {
  return c.enqueue_config ? c.enqueue_config(problem, launches, args, workspace, stream)
                          : c.enqueue(problem, args, workspace, stream);
}

}  // namespace sluice
