// From logits to rows: one warp per token chooses (tile/routing.cuh), the CTAs of a cluster count and place
// (tile/grouping.cuh). One launch up to 1024 tokens, two above.
//
// Wins    if no other kernel accepts the problem: ids stay on the SM until they are grouped.
// Loses   to kernels for a rule known at compile time: route_group_fewtokens_sm90.cu, route_group_lanes_sm90.cu.
// Limits  none beyond the contract.
// Source  original; the contract is ops/route_group.h. Measurements: docs/notes/cuda-routing.md.
#include "backends/cuda/card.h"
#include "backends/cuda/group_grid.h"
#include "ops/route_group.h"

namespace sluice::cuda {
namespace {

using Problem = RouteGroup::Problem;
using Args = RouteGroup::Args;
constexpr int kThreadsMost = 512;  // threads per CTA of the second launch

// A map, a table or given ids may name an expert twice.
bool slots_differ(const RouteTopk::Problem& p) {
  return p.input == RoutingInput::kLogits && p.scope != ExpertScope::kMap && !routing_rule(p.method).by_hash;
}

GroupGrid grid_of(const Problem& p) { return group_grid(RouteGroup::group(p), slots_differ(p.route), {}); }

Refusal supports(const Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Fitted to an H200 on seven models' routing from 1 to 16384 tokens: docs/notes/cuda-routing.md.
double cost_us(const Problem& p, const DeviceInfo&) {
  const double experts = static_cast<double>(p.route.experts), tokens = static_cast<double>(p.route.tokens);
  const double score = !RouteTopk::chooses_by_score(p.route)            ? 0
                       : p.route.method == RoutingMethod::kSqrtSoftplus ? 4.0e-3
                                                                        : 1.5e-3;
  const double one = 2.35 + 0.068 * static_cast<double>(p.route.top_k) + (0.7e-3 + score) * experts;
  if (tokens <= 8) return one + 0.05 * tokens;
  if (tokens <= 128) return one + 0.45 + 1.3e-3 * one * tokens;
  if (tokens <= 256) return 1.75 * one;
  const double more = one - 2.7;
  return 6 + 3.2 * more + (0.65e-3 + 1.0e-3 * more) * tokens;
}

size_t workspace_bytes(const Problem& p, const DeviceInfo&) {
  return cluster_count_bytes(RouteGroup::group(p), grid_of(p));
}

struct Launcher {
  static Status enqueue(const Problem&, const Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouteGroup> route_group_cluster_sm90 = {
    .name = "cuda.route_group.cluster_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue_of<RouteGroup, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grouping.cuh"
#include "backends/cuda/tile/routing.cuh"

namespace sluice::cuda {
namespace {

using Score = RoutingRule::Score;

// Threads of a CTA with n experts per lane: one thread per expert.
constexpr int threads_of(int n) { return n <= 8 ? 256 : 512; }

template <int N, Score kScore, bool kPlain>
__global__ void __launch_bounds__(threads_of(N), 1)
    route_group(const __grid_constant__ tile::Routing r, const __grid_constant__ tile::Grouping g) {
  extern __shared__ uint4 shared[];
  const tile::GroupMemory m = tile::group_memory(g, shared);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, threads = static_cast<int>(blockDim.x);
  const int first = tile::first_token(g), here = tile::tokens_here(g), slots_here = here * g.slots;
  int32_t* ids = reinterpret_cast<int32_t*>(m.end);
  float* weights = reinterpret_cast<float*>(ids + g.grid.tokens_per_block * g.slots);
  uint32_t* scratch =
      reinterpret_cast<uint32_t*>(weights + g.grid.tokens_per_block * g.slots) + warp * r.rule.scratch_words;
  float bias[N];
  tile::RawLogits<N> logits;
  tile::load_bias(bias, r);
  tile::wait_for_previous();
  if (warp < here && (kPlain || r.by_logits)) tile::load_logits<N, kPlain>(logits, r, first + warp);
  tile::begin_groups(g, m);  // while the loads of logits are in flight
  const int valid = !kPlain && r.tokens_valid ? *r.tokens_valid : r.tokens;
  __syncthreads();
#pragma unroll 1
  for (int t = warp; t < here;) {
    const bool real = kPlain || first + t < valid;
    tile::Chosen chosen{-1, 0.f};
    if (real) chosen = tile::choose_token<N, kScore, kPlain>(r, first + t, logits, bias, scratch);
    tile::put_token<kPlain>(r, first + t, real, chosen, [&](int slot, int id, float weight) {
      tile::place(g, m, t, slot, id);
      ids[t * g.slots + slot] = id;
      weights[t * g.slots + slot] = weight;
    });
    t += threads / 32;
    if (t < here && (kPlain || r.by_logits)) tile::load_logits<N, kPlain>(logits, r, first + t);
  }
  // Not at the start: CTAs of the next launch would crowd the SMs that become free first.
  tile::release_next();
  tile::end_groups(g, m, [&] {
    const int64_t at = static_cast<int64_t>(first) * g.slots;
#pragma unroll 1
    for (int i = tid; i < slots_here; i += threads) r.ids[at + i] = ids[i], r.weights[at + i] = weights[i];
  });
}

__global__ void __launch_bounds__(kThreadsMost, 1)
    finish(const __grid_constant__ tile::Grouping g, int split) {
  extern __shared__ uint4 shared[];
  tile::release_next();
  tile::wait_for_previous();
  tile::finish_groups(g, tile::group_memory(g, shared), static_cast<int>(blockIdx.x),
                      static_cast<int>(gridDim.x), split);
}

template <Score kScore, bool kPlain>
auto kernel_for(int n) {
  switch (n) {
    case 1:
      return route_group<1, kScore, kPlain>;
    case 4:
      return route_group<4, kScore, kPlain>;
    case 8:
      return route_group<8, kScore, kPlain>;
    case 12:
      return route_group<12, kScore, kPlain>;
    case 16:
      return route_group<16, kScore, kPlain>;
    default:
      return route_group<32, kScore, kPlain>;
  }
}
template <bool kPlain>
auto kernel_for(Score score, int n) {
  return score == Score::kSigmoid        ? kernel_for<Score::kSigmoid, kPlain>(n)
         : score == Score::kSqrtSoftplus ? kernel_for<Score::kSqrtSoftplus, kPlain>(n)
                                         : kernel_for<Score::kLogit, kPlain>(n);
}

Status Launcher::enqueue(const Problem& p, const Args& a, Workspace w, Stream stream) {
  const GroupGrid grid = grid_of(p);
  const tile::Routing r = tile::routing(p.route, a);
  tile::Grouping g = tile::grouping(RouteGroup::group(p), RouteGroup::group(a), grid);
  g.cluster_count = reinterpret_cast<uint32_t*>(w.data);
  g.grid_words = queue_of(stream).grid_words;
  const int n = tile::experts_per_lane(p.route.experts);
  const Score score = tile::score_kind(p.route);
  const auto kernel = tile::is_plain(r) ? kernel_for<true>(score, n) : kernel_for<false>(score, n);
  const size_t slot_bytes =
      static_cast<size_t>(grid.tokens_per_block * g.slots) * (sizeof(int32_t) + sizeof(float));
  const auto scratch = static_cast<size_t>(r.rule.scratch_words) * sizeof(uint32_t);
  const unsigned threads = scratch ? 128 : static_cast<unsigned>(threads_of(n));
  const auto cluster = static_cast<unsigned>(grid.cluster), clusters = static_cast<unsigned>(grid.clusters);
  const Launch how{.grid = {cluster * clusters, 1, 1},
                   .block = {threads, 1, 1},
                   .shared_bytes = tile::group_shared_bytes(g) + slot_bytes + scratch * threads / 32,
                   .cluster = {cluster, 1, 1}};
  SLUICE_TRY(launch(route_group_cluster_sm90.name, kernel, how, stream, r, g));
  if (!grid.second_launch) return {};
  const int split = second_split(grid);
  const Launch second{.grid = {clusters * static_cast<unsigned>(split), 1, 1},
                      .block = {kThreadsMost, 1, 1},
                      .shared_bytes = tile::group_shared_bytes(g)};
  return launch(route_group_cluster_sm90.name, finish, second, stream, g, split);
}

}  // namespace

}  // namespace sluice::cuda
#endif
