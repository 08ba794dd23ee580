// A kernel as dispatch sees it: a card of plain functions. No state.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

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

template <class Op>
struct Candidate {
  std::string_view name;  // "cuda.router_gemm.splitk_sm90": backend.op.variant
  Backend backend = Backend::kCpu;
  // Must refuse every problem that the kernel gets wrong, with every reason. Sees only problems that
  // Op::validate accepts.
  Refusal (*supports)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  double (*cost_us)(const typename Op::Problem&,
                    const DeviceInfo&) = nullptr;  // a model: nothing is timed at run time
  size_t (*workspace_bytes)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
  // Enqueues and returns. No allocation, no synchronisation, no read of device memory: recordable.
  Status (*enqueue)(const typename Op::Problem&, const typename Op::Args&, Workspace, Stream) = nullptr;
  bool batch_invariant = false;  // a row's bits do not depend on the other rows
  int alignment_bytes = 1;       // of every tensor's first element, beyond its own type's
  bool planned = false;          // a card without a kernel: explain shows it and says so, nothing runs it
  // Kernels of other operations, one after the other: whoever runs those gains nothing here.
  bool in_turn = false;
  // For explain, in a line: what it launches, where the name does not say it.
  std::string (*launches)(const typename Op::Problem&, const DeviceInfo&) = nullptr;
};

}  // namespace sluice
