// Replaces references to tokens of the previous step by their ids: one thread per id.
//
// Wins    always: it is the only kernel of TakeTokens. One small launch at the start of a step.
// Loses   to an embedding kernel that looked up the token itself, which would save one launch per step; there is no such kernel.
// Limits  none beyond the contract.
// Source  original; the contract is ops/take_tokens.h.
#include "backends/cuda/card.h"
#include "ops/take_tokens.h"

namespace sluice::cuda {
namespace {

Refusal supports(const TakeTokens::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const TakeTokens::Problem&, const TakeTokens::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<TakeTokens> take_tokens_copy_sm90 = {
    .name = "cuda.take_tokens.copy_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<TakeTokens>,
    .workspace_bytes = no_workspace<TakeTokens>,
    .enqueue = enqueue_of<TakeTokens, Launcher>(),
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

__global__ void __launch_bounds__(kThreads)
    take_tokens(const int32_t* ids, const int32_t* sampled, const int32_t* token_of, int32_t* y, int tokens,
                int rows, int map) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  tile::release_next();
  tile::wait_for_previous();
  if (t >= tokens) return;
  int id = ids[t];
  if (id < 0) {
    const int row = -1 - id;  // cannot overflow: the least i32 gives the largest
    id = row < rows ? sampled[row] : -1;
    if (map > 0) id = id >= 0 && id < map ? token_of[id] : -1;
  }
  y[t] = id;
}

Status Launcher::enqueue(const TakeTokens::Problem& p, const TakeTokens::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const Launch how{.grid = {static_cast<unsigned>((p.tokens + kThreads - 1) / kThreads), 1, 1},
                   .block = {kThreads, 1, 1}};
  return launch(take_tokens_copy_sm90.name, take_tokens, how, stream, a.ids.as<const int32_t>(),
                a.sampled.as<const int32_t>(), a.token_of.as<const int32_t>(), a.y.as<int32_t>(),
                static_cast<int>(p.tokens), static_cast<int>(p.rows), static_cast<int>(p.map));
}

}  // namespace
}  // namespace sluice::cuda
#endif
