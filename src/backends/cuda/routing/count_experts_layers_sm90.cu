// Counts the tokens of each expert: one CTA per layer counts in shared memory, then adds its counts to the totals of the layer.
//
// Wins    always: it is the only kernel of CountExperts. One small launch per step for all layers. Routing has already written the ids.
// Loses   to a routing kernel that counted while it writes, which would save one launch per step; there is no such kernel.
// Limits  tokens * top_k < 2^32: a CTA counts in 32 bits.
// Source  original; the contract is ops/count_experts.h.
#include "backends/cuda/card.h"
#include "ops/count_experts.h"

namespace sluice::cuda {
namespace {

Refusal supports(const CountExperts::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  const int64_t slots = p.tokens * p.top_k;
  r.need(slots <= UINT32_MAX, "tokens * top_k < 2^32 (counts of 32 bits in shared memory)", "tokens * top_k",
         slots);
  return r;
}

struct Launcher {
  static Status enqueue(const CountExperts::Problem&, const CountExperts::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<CountExperts> count_experts_layers_sm90 = {
    .name = "cuda.count_experts.layers_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<CountExperts>,
    .workspace_bytes = no_workspace<CountExperts>,
    .enqueue = enqueue_of<CountExperts, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kExpertsMax = 1024;  // the contract's limit
constexpr int kAtOnce = 4;         // ids that a thread loads before it counts the first of them

__global__ void __launch_bounds__(kThreads)
    count_experts(const int32_t* ids,  // [layers, slots], `stride` ids between layers
                  int64_t* counts,     // [layers, experts]
                  int64_t stride, int64_t slots, int experts) {
  __shared__ unsigned count[kExpertsMax];
  tile::release_next();
  for (int e = threadIdx.x; e < experts; e += kThreads) count[e] = 0;
  __syncthreads();
  tile::wait_for_previous();
  const int32_t* const of_layer = ids + blockIdx.x * stride;
  for (int64_t first = threadIdx.x; first < slots; first += kAtOnce * kThreads) {
    int id[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      id[i] = first + i * kThreads < slots ? of_layer[first + i * kThreads] : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (id[i] >= 0 && id[i] < experts) atomicAdd(&count[id[i]], 1u);
  }
  __syncthreads();
  int64_t* const to = counts + int64_t{blockIdx.x} * experts;
  for (int e = threadIdx.x; e < experts; e += kThreads) to[e] += count[e];  // only this CTA writes this layer
}

Status Launcher::enqueue(const CountExperts::Problem& p, const CountExperts::Args& a, Workspace,
                         Stream stream) {
  if (p.tokens == 0) return {};
  const Launch how{.grid = {static_cast<unsigned>(p.layers), 1, 1}, .block = {kThreads, 1, 1}};
  return launch(count_experts_layers_sm90.name, count_experts, how, stream, a.ids.as<const int32_t>(),
                a.counts.as<int64_t>(), a.ids.stride[0], p.tokens * p.top_k, static_cast<int>(p.experts));
}

}  // namespace
}  // namespace sluice::cuda
#endif
