// Groups rows by expert: the CTAs of a cluster count slots and compute their rows (tile/grouping.cuh). One launch up to 8192 slots, two above.
//
// Wins    always: it is the only kernel of GroupRows.
// Loses   to the kernels of RouteGroup where routing comes first: they are 1.01 to 1.4x faster than
//         route_topk and group_rows (docs/lab/cuda-routing.md).
// Limits  none beyond the contract.
// Source  original; the contract is ops/group_rows.h.
#include "backends/cuda/card.h"
#include "backends/cuda/tile/group_grid.h"
#include "ops/group_rows.h"

namespace sluice::cuda {
namespace {

using Problem = GroupRows::Problem;
constexpr int kThreads = 512;

Refusal supports(const Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Fitted on an H200 to 128 experts, 4 slots and tiles of 64, for 1 to 16384 tokens. The cost of more experts
// is fitted to route_topk and group_rows with 256 and 384 experts at one token (docs/lab/cuda-routing.md).
double cost_us(const Problem& p, const DeviceInfo&) {
  const double slots = static_cast<double>(p.tokens * p.slots);
  const double experts = 3.7e-3 * static_cast<double>(std::max<int64_t>(p.experts - 128, 0));
  if (slots <= kThreads) return 2.1 + 1.6e-3 * slots + experts;
  return (slots <= 16 * kThreads ? 3.9 + 8e-5 * slots : 6.5 + 1.2e-5 * slots) + experts;
}

size_t workspace_bytes(const Problem& p, const DeviceInfo&) { return cluster_count_bytes(p, group_grid(p)); }

struct Launcher {
  static Status enqueue(const Problem&, const GroupRows::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<GroupRows> group_rows_cluster_sm90 = {
    .name = "cuda.group_rows.cluster_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue_of<GroupRows, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grouping.cuh"

namespace sluice::cuda {
namespace {

__global__ void __launch_bounds__(kThreads, 1) group_rows(const __grid_constant__ tile::Grouping g) {
  extern __shared__ uint4 shared[];
  const tile::GroupMemory m = tile::group_memory(g, shared);
  tile::begin_groups(g, m);
  tile::wait_for_previous();
  const int count = tile::tokens_here(g) * g.slots;
  __syncthreads();
  const int32_t* ids = g.ids + static_cast<int64_t>(tile::first_token(g)) * g.slots;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) tile::place(g, m, i, ids[i]);
  // Not at the start: CTAs of the next launch would all start on the SMs that become free first.
  tile::release_next();
  tile::end_groups(g, m);
}

__global__ void __launch_bounds__(kThreads, 1) finish(const __grid_constant__ tile::Grouping g, int split) {
  extern __shared__ uint4 shared[];
  tile::release_next();
  tile::wait_for_previous();
  tile::finish_groups(g, tile::group_memory(g, shared), static_cast<int>(blockIdx.x),
                      static_cast<int>(gridDim.x), split);
}

Status Launcher::enqueue(const Problem& p, const GroupRows::Args& a, Workspace w, Stream stream) {
  const GroupGrid grid = group_grid(p);
  tile::Grouping g = tile::grouping(p, a, grid);
  g.cluster_count = reinterpret_cast<uint32_t*>(w.data);
  const auto cluster = static_cast<unsigned>(grid.cluster), clusters = static_cast<unsigned>(grid.clusters);
  Launch how{.grid = {cluster * clusters, 1, 1},
             .block = {kThreads, 1, 1},
             .shared_bytes = tile::group_shared_bytes(g),
             .cluster = {cluster, 1, 1}};
  SLUICE_TRY(launch(group_rows_cluster_sm90.name, group_rows, how, stream, g));
  if (!grid.second_launch()) return {};
  const int split = second_split(grid);
  how.grid = {clusters * static_cast<unsigned>(split), 1, 1};
  how.cluster = {1, 1, 1};
  return launch(group_rows_cluster_sm90.name, finish, how, stream, g, split);
}

}  // namespace

}  // namespace sluice::cuda
#endif
