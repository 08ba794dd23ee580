// A kernel descriptor (Candidate): what dispatch knows about a kernel, as functions without state.
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

// Features of a CPU, as bits of DeviceInfo::cpu_features.
enum CpuFeature : uint32_t {
  kAvx2 = 1u << 0,        // with FMA, BMI2 and F16C
  kAvx512 = 1u << 1,      // F, BW, CD, DQ, VL
  kAvx512Bf16 = 1u << 2,  // dot products of bf16 pairs
  kAmxBf16 = 1u << 3,     // 16 x 16 x 32 tiles of bf16, if this process may use them
  kNeon = 1u << 4,
};
std::string features_text(uint32_t features);

// Plain data, so that kernel choices for an H200 can be explained on a machine without one.
struct DeviceInfo {
  std::string name;
  Backend backend = Backend::kCpu;
  int index = 0;  // index among the backend's devices: a plan runs only on streams of this device
  int sm = 0;     // CUDA: compute capability, 90 for 9.0; 0 on a CPU
  int cores = 1;  // CUDA: multiprocessors; CPU: threads of the pool
  uint32_t cpu_features = 0;
  double mem_bytes_per_us = 0;   // read bandwidth of the whole device
  double bf16_flops_per_us = 0;  // sustained, dense
  double f32_flops_per_us = 0;
  double launch_us = 0;                           // cost of one more kernel in a captured graph
  WeightLayout layout = WeightLayout::kPanels16;  // weight layout that the dense kernels read
};
// "h200 (sm90, 132 SMs)", "cpu (2 threads; avx2 avx512 ...)"
std::string text(const DeviceInfo& device);

struct Policy {
  // The only kernels allowed: NAME or NAME:CONFIG, separated by commas, at most one per operation. The middle part of
  // a name is its operation (cuda.expert_gemm.mxfp4_tile_sm90). If a forced kernel does not accept the problem,
  // planning fails. In a step, a forced fused kernel runs at the token counts that it accepts (Pieces::allowed).
  std::string force = {};
  bool batch_invariant = false;  // only kernels whose result for a row does not depend on the other rows
};

// One launch of a plan, as numbers with a meaning only to the candidate that produced them.
struct KernelLaunch {
  std::array<int32_t, 6> value{};
  bool operator==(const KernelLaunch&) const = default;
};
using LaunchList = std::vector<KernelLaunch>;

// One way in which a candidate computes a problem.
struct Config {
  std::string name = {};  // unique within the candidate; empty if it has a single configuration
  Refusal refusal = {};   // why the configuration cannot compute this problem
  double cost_us = 0;
  size_t workspace_bytes = 0;
  LaunchList launches = {};
};

template <class Op>
struct Candidate {
  std::string_view name;  // "cuda.router_gemm.splitk_sm90": backend.op.variant
  Backend backend = Backend::kCpu;
  // Must reject every problem that the kernel would compute wrongly, and give every reason. Only called with
  // problems that Op::validate accepts.
  Refusal (*supports)(const typename Op::Problem&, const DeviceInfo&) = nullptr;

  // For a candidate with a single configuration. cost_us is a model; kernels are never timed at run time.
  // enqueue() must not allocate, synchronize or read device memory, so that it can be captured.
  double (*cost_us)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  size_t (*workspace_bytes)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  Status (*enqueue)(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) = nullptr;

  // For a candidate with several configurations, instead of the above. configs() lists all configurations
  // of a problem that supports() accepts, in a fixed order, each with its cost or refusal. enqueue_config()
  // enqueues the launches of one configuration and makes no decisions.
  std::vector<Config> (*configs)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  Status (*enqueue_config)(const typename Op::Problem&, std::span<const KernelLaunch>,
                           const typename Op::Args&, Workspace, Stream) = nullptr;
  // Describes one launch, for explain.
  std::string (*launch_text)(const typename Op::Problem&, const KernelLaunch&) = nullptr;

  bool batch_invariant = false;  // a row's bits do not depend on the other rows
  // True: only runs of the same configuration agree bit for bit. False: all configurations give the same bits.
  bool config_decides_bits = false;
  int alignment_bytes = 1;  // required of every tensor's first element, if stricter than its type's alignment
  // a descriptor whose kernel is not written yet: explain lists it as planned, and it cannot run
  bool planned = false;
};

// The variant in "cuda.router_gemm.splitk_sm90" is splitk_sm90.
inline std::string_view variant_of(std::string_view candidate) {
  return candidate.substr(candidate.rfind('.') + 1);
}

// All configurations of a candidate; a candidate without configs() has exactly one.
template <class Op>
std::vector<Config> configs_of(const Candidate<Op>& c, const typename Op::Problem& problem,
                               const DeviceInfo& device) {
  if (c.configs) return c.configs(problem, device);
  return {
      Config{.cost_us = c.cost_us(problem, device), .workspace_bytes = c.workspace_bytes(problem, device)}};
}

// Index of the accepted configuration with the least cost, the first if several cost the same; -1: none is accepted.
inline int cheapest(const std::vector<Config>& configs) {
  int best = -1;
  for (size_t i = 0; i < configs.size(); ++i)
    if (configs[i].refusal.accepted() &&
        (best < 0 || configs[i].cost_us < configs[static_cast<size_t>(best)].cost_us))
      best = static_cast<int>(i);
  return best;
}

// The cheapest configuration for a problem that the candidate accepts.
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
