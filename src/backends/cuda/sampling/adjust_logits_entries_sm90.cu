// Penalties and biases: one thread per entry.
//
// Wins    always: it is the only kernel of AdjustLogits. Entries are scattered over their rows, so threads share no loads.
// Limits  none beyond the contract.
// Bytes   each entry reads and writes a sector of 32 bytes.
// Source  original; the contract is ops/adjust_logits.h.
#include "backends/cuda/card.h"
#include "ops/adjust_logits.h"

namespace sluice::cuda {
namespace {

Refusal supports(const AdjustLogits::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const AdjustLogits::Problem&, const AdjustLogits::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<AdjustLogits> adjust_logits_entries_sm90 = {
    .name = "cuda.adjust_logits.entries_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<AdjustLogits>,
    .workspace_bytes = no_workspace<AdjustLogits>,
    .enqueue = enqueue_of<AdjustLogits, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 128;

struct Parameters {
  const int32_t *row, *id, *count;
  const uint8_t* in_prompt;
  const float *logit_bias, *repetition, *frequency, *presence;
  float* raw;
  float* logits;
  int64_t stride;  // elements between rows
  int entries, rows, vocab;
};

__device__ __forceinline__ float unless_nan(float value, float otherwise) {
  return value == value ? value : otherwise;
}

__device__ __forceinline__ float adjusted(const Parameters& p, int64_t entry, int row, float x) {
  const int count = p.count[entry];
  x = __fadd_rn(x, unless_nan(p.logit_bias[entry], 0.f));
  if (p.in_prompt[entry] != 0 || count > 0) {
    const float repetition = unless_nan(p.repetition[row], 1.f);
    x = x > 0.f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
  }
  if (count > 0) {
    x = __fsub_rn(x, __fmul_rn(unless_nan(p.frequency[row], 0.f), static_cast<float>(count)));
    x = __fsub_rn(x, unless_nan(p.presence[row], 0.f));
  }
  return x;
}

template <AdjustWay kWay>
__global__ void __launch_bounds__(kThreads) adjust_logits(const __grid_constant__ Parameters p) {
  const int64_t entry = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  tile::release_next();
  tile::wait_for_previous();
  if (entry >= p.entries) return;
  const int row = p.row[entry], id = p.id[entry];
  if (row < 0 || row >= p.rows || id < 0 || id >= p.vocab) return;
  float* const logit = p.logits + row * p.stride + id;
  if constexpr (kWay == AdjustWay::kApply) {
    const float raw = *logit;
    p.raw[entry] = raw;
    *logit = adjusted(p, entry, row, raw);
  } else {
    *logit = p.raw[entry];
  }
}

Status Launcher::enqueue(const AdjustLogits::Problem& p, const AdjustLogits::Args& a, Workspace,
                         Stream stream) {
  if (p.entries == 0) return {};
  const Parameters parameters{.row = a.row.as<const int32_t>(),
                              .id = a.id.as<const int32_t>(),
                              .count = a.count.as<const int32_t>(),
                              .in_prompt = a.in_prompt.as<const uint8_t>(),
                              .logit_bias = a.logit_bias.as<const float>(),
                              .repetition = a.repetition.as<const float>(),
                              .frequency = a.frequency.as<const float>(),
                              .presence = a.presence.as<const float>(),
                              .raw = a.raw.as<float>(),
                              .logits = a.logits.as<float>(),
                              .stride = a.logits.stride[0],
                              .entries = static_cast<int>(p.entries),
                              .rows = static_cast<int>(p.rows),
                              .vocab = static_cast<int>(p.vocab)};
  const Launch how{.grid = {static_cast<unsigned>((p.entries + kThreads - 1) / kThreads), 1, 1},
                   .block = {kThreads, 1, 1}};
  const auto kernel =
      p.way == AdjustWay::kApply ? adjust_logits<AdjustWay::kApply> : adjust_logits<AdjustWay::kRestore>;
  return launch(adjust_logits_entries_sm90.name, kernel, how, stream, parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
