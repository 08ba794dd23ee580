// Routing of few tokens, from logits to grouped rows. A team of threads chooses the experts of a token, one thread
// per expert (tile/few_tokens.cuh). A CTA has up to four teams, a cluster up to 16 CTAs. The ids of a token are sent
// to every CTA as one 16-byte chunk, so every CTA counts all ids for itself and writes the outputs of its own tokens.
//
// Wins    up to 32 tokens of 256 and 384 experts and 64 tokens of 128 (routing_candidates.csv). Against route_group_lanes_sm90 it saves
//         1.2 to 2.1 us at one token and 0.6 to 1.1 us at 32 with plain launches, 1.0 to 1.9 us and 0.5 to 1.0 us with dependent ones.
// Loses   to route_group_lanes_sm90 by 0.3 to 0.5 us at 64 tokens of 256 experts, with either kind of launch: the teams of a CTA compete
//         for issue slots.
// Limits  the requirements of need_team() (tile/team.h), and row_align of 1.
// Source  original; the contract is ops/fused/route_group.h.
#include "backends/cuda/card.h"
#include "backends/cuda/tile/team.h"
#include "ops/fused/route_group.h"

namespace sluice::cuda {
namespace {

using Problem = RouteGroup::Problem;
using Args = RouteGroup::Args;
constexpr int kTokensMax = 64, kSlotsMax = 8;
constexpr unsigned kClusterMax = 16;
constexpr int kTokenBytes = 16;  // ids of one token

constexpr int teams_max(int64_t experts) { return experts <= 256 ? 4 : 2; }

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  tile::need_team(r, p.route, std::min<int64_t>(kTokensMax, kClusterMax * teams_max(p.route.experts)));
  r.need(p.row_align == 1, "row_align=1", "row_align", p.row_align);
  return r;
}

// CTAs per cluster. Measured: several teams in a CTA cost more than the exchange between CTAs, except for small teams.
unsigned blocks_of(const RouteTopk::Problem& p) {
  const auto tokens = static_cast<unsigned>(p.tokens);
  unsigned blocks = 1;
  if (tokens > 1 && p.tokens * p.experts > 128)
    while (blocks < kClusterMax && blocks < tokens) blocks *= 2;
  return blocks;
}

// Fitted to an H200: the cost of one token, of the exchange, and of every team of a CTA after the first.
double cost_us(const Problem& p, const DeviceInfo&) {
  const double experts = static_cast<double>(p.route.experts);
  const unsigned blocks = blocks_of(p.route);
  const double one = 1.45 + 0.03 * static_cast<double>(std::max<int64_t>(p.route.top_k - 4, 0)) +
                     (RouteTopk::chooses_by_score(p.route) ? 1.7e-3 : 1.1e-3) * experts +
                     (experts > 256 ? 0.4 : 0);
  const double team =
      (p.route.method == RoutingMethod::kSqrtSoftplus ? 0.1 : 0.04) + 7.5e-6 * experts * experts;
  const double teams = std::ceil(static_cast<double>(p.route.tokens) / blocks);
  return one + (blocks > 1 ? 0.36 : 0) + team * (teams - 1);
}

struct Launcher {
  static Status enqueue(const Problem&, const Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouteGroup> route_group_fewtokens_sm90 = {
    .name = "cuda.route_group.fewtokens_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouteGroup>,
    .enqueue = enqueue_of<RouteGroup, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/few_tokens.cuh"
#include "backends/cuda/tile/shared_slots.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda {
namespace {

struct Few {
  const void* logits;
  int64_t logits_stride;
  const float* bias;
  int bf16;
  uint32_t tokens, top_k, tokens_per_block;
  uint32_t tile_shift, tile_less_one;  // without tiles: a shift after which every expert has 0 tiles, and 0
  uint32_t tiles_max, shared_tiles;    // shared_tiles: tiles of all shared experts
  tile::SharedSlots shared;
  float scale;
  int32_t *ids, *row_count, *row_begin, *order, *position, *tile_count, *tiles;
  float* weights;
};

template <int kExperts, int kList>
struct alignas(16) Memory {
  static constexpr int kWarps = kExperts / 32;
  uint64_t arrived;                        // mbarrier: ids of all tokens have arrived
  alignas(16) uint16_t id[kTokensMax][8];  // ids of all tokens
  alignas(16) uint2 tokens[kExperts];      // mask of each expert's tokens
  // rows | tiles << 16 of the experts before this one in its group of 32
  alignas(16) uint32_t before[kExperts];
  alignas(16) uint32_t sum[(kWarps + 3) / 4 * 4];  // rows | tiles << 16 of each group of 32 experts
  tile::TeamMemory<kExperts, kList> team[teams_max(kExperts)];
};

template <int kWarps>
struct Sums {
  uint32_t of[(kWarps + 3) / 4 * 4];
  // Returns rows | tiles << 16 before the 32 experts of `warp`, which is 0 to kWarps.
  __device__ __forceinline__ uint32_t before(uint32_t warp) const {
    uint32_t out = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) out += w < warp ? of[w] : 0;
    return out;
  }
};

// Waits for the ids of all tokens, and sets the token masks of the experts.
template <int kExperts, int kList>
__device__ __forceinline__ void take_ids(Memory<kExperts, kList>& m, const Few& p, uint32_t tid,
                                         uint32_t threads) {
  tile::barrier_wait(&m.arrived, 0);
#pragma unroll 1
  for (uint32_t i = tid; i < p.tokens * kSlotsMax; i += threads) {
    const uint32_t t = i / kSlotsMax, id = m.id[t][i % kSlotsMax];
    if (id != tile::kNoExpert) atomicOr(t < 32 ? &m.tokens[id].x : &m.tokens[id].y, 1u << t % 32);
  }
  __syncthreads();
}

// Counts the rows of an expert, and the rows and tiles before it in its group of 32. Called by whole warps.
template <bool kAlone, int kExperts, int kList>
__device__ __forceinline__ uint32_t count_rows(Memory<kExperts, kList>& m, const Few& p, uint32_t expert) {
  const uint32_t lane = expert % 32;
  const uint32_t count = __popc(m.tokens[expert].x) + (kAlone ? 0 : __popc(m.tokens[expert].y));
  const uint32_t both = count | (count + p.tile_less_one) >> p.tile_shift << 16;
  uint32_t up_to = both;
  tile::add_lanes_before(static_cast<int>(lane), up_to);
  m.before[expert] = up_to - both;
  if (lane == 31) m.sum[expert / 32] = up_to;
  return count;
}

// Writes the row of a slot, and the tile that begins with that row.
template <bool kAlone, int kExperts, int kList, int kWarps>
__device__ __forceinline__ void write_row(const Memory<kExperts, kList>& m, const Few& p,
                                          const Sums<kWarps>& sums, int expert, uint32_t token,
                                          uint32_t slot) {
  const auto id = static_cast<uint32_t>(expert);
  const uint2 tokens = m.tokens[id];
  const uint32_t begin = m.before[id] + sums.before(id / 32), below = (1u << token % 32) - 1;
  uint32_t rank = __popc(tokens.x & below);
  if (!kAlone && token >= 32) rank = __popc(tokens.x) + __popc(tokens.y & below);
  const uint32_t row = (begin & 0xffff) + rank, tile = (begin >> 16) + (rank >> p.tile_shift);
  p.position[slot] = static_cast<int>(row);
  p.order[row] = static_cast<int>(slot);
  if (rank == rank >> p.tile_shift << p.tile_shift && tile < p.tiles_max)
    reinterpret_cast<int2*>(p.tiles)[tile] = int2{expert, static_cast<int>(row)};
}

// kAlone: the grid is one CTA, with one team per token. kShared: there are shared slots. Only the last lines of the kernel depend on
// it, but with one kernel for both cases the compiler scheduled the earlier code differently, and one token took 0.03 to 0.07 us more.
template <int kExperts, int kList, tile::TeamKind kKind, bool kAlone, bool kShared>
__global__ void __launch_bounds__(kExperts* teams_max(kExperts), 1) route_few(const __grid_constant__ Few p) {
  extern __shared__ uint4 shared[];
  constexpr int kWarps = kExperts / 32;
  auto& m = *reinterpret_cast<Memory<kExperts, kList>*>(shared);
  const uint32_t tid = threadIdx.x, threads = p.tokens_per_block * kExperts;
  const uint32_t team = tid / kExperts, e = tid % kExperts, lane = tid % 32, warp = tid / 32;
  const uint32_t own = kAlone ? team : blockIdx.x * p.tokens_per_block + team;
  const bool real = kAlone || own < p.tokens;
  const uint32_t token =
      // a team without a token repeats the last token and writes nothing
      kAlone ? own : min(own, p.tokens - 1);
  const auto sync = [&] { tile::sync_threads<kExperts>(static_cast<int>(team) + 1); };
  float bias = 0;
  if constexpr (tile::kTeamRules[kKind].by_score)
    if (p.bias) bias = p.bias[e];
  tile::wait_for_previous();
  const int64_t at = token * p.logits_stride + e;
  const float logit = tile::load_logit(p.logits, at, p.bf16);
  auto& mine = m.team[team];
  tile::clear_team(mine, e);
  if (tid < kExperts) m.tokens[tid] = uint2{0, 0};
  if (!kAlone) {
    if (tid == 0) {
      tile::barrier_init(&m.arrived, 1);
      tile::barrier_visible();
    }
    tile::cluster_arrive();
  }
  __syncthreads();
  const tile::TeamChoice chosen = tile::choose_by_team<kExperts, kList, kKind>(mine, logit, bias, e, sync);
  if (chosen.slot < p.top_k) {
    tile::leave_choice(mine, chosen, e);
    if (kAlone) atomicOr(&m.tokens[e].x, 1u << team);
  }
  if (kAlone) {
    __syncthreads();
  } else {
    tile::cluster_wait();
    if (tid == 0) tile::barrier_expect(&m.arrived, p.tokens * kTokenBytes);
    sync();
    if (e < 32 && real && lane < gridDim.x)
      tile::store_remote(tile::remote_address(tile::shared_address(m.id[token]), lane),
                         *reinterpret_cast<const uint4*>(mine.id),
                         tile::remote_address(tile::shared_address(&m.arrived), lane));
  }
  tile::Chosen of_slot{tile::kNoExpert, 0.f};
  const bool holds = e < 32 && lane < p.top_k && real;
  const uint32_t slot = token * (kShared ? p.shared.all : p.top_k) + lane;
  if (e < 32) {
    of_slot = tile::weigh_by_team<kExperts, kList, kKind>(mine, p.top_k, chosen.row.most, lane);
    if (holds) p.ids[slot] = of_slot.expert, p.weights[slot] = of_slot.weight * p.scale;
  }
  tile::release_next();
  if (!kAlone) take_ids(m, p, tid, threads);
  uint32_t count = 0;
  if (tid < kExperts) count = count_rows<kAlone>(m, p, tid);
  __syncthreads();
  alignas(16) Sums<kWarps> sums;
#pragma unroll
  for (int w = 0; w < kWarps; w += 4)
    *reinterpret_cast<uint4*>(sums.of + w) = *reinterpret_cast<const uint4*>(m.sum + w);
  const uint32_t all = sums.before(kWarps);  // rows | tiles << 16 of all chosen experts
  const uint32_t tiles = (all >> 16) + (kShared ? p.shared_tiles : 0);
  if (holds) write_row<kAlone>(m, p, sums, of_slot.expert, token, slot);
  if (tid < kExperts && blockIdx.x == 0) {
    p.row_count[tid] = static_cast<int>(count);
    p.row_begin[tid] = static_cast<int>((m.before[tid] + sums.before(warp)) & 0xffff);
    if (tid == 0) p.row_begin[kExperts] = static_cast<int>(all & 0xffff);
    if (tid == 0 && p.tile_count) *p.tile_count = static_cast<int>(tiles);
  }
  const uint32_t rest = tiles + own * kExperts + e;  // there are at least as many threads
  if (rest < p.tiles_max) reinterpret_cast<int2*>(p.tiles)[rest] = int2{-1, -1};
  // The team's last warp writes the slots of shared experts; the first warp writes the chosen slots.
  if (kShared && real && e / 32 == uint32_t{kWarps - 1})
    tile::put_shared_row(p, token, lane, all & 0xffff, all >> 16);
}

struct Kernel {
  void (*call)(Few) = nullptr;
  size_t shared_bytes = 0;
};
template <int kExperts, int kList, tile::TeamKind kKind, bool kShared>
Kernel kernel_by(bool alone) {
  return {alone ? route_few<kExperts, kList, kKind, true, kShared>
                : route_few<kExperts, kList, kKind, false, kShared>,
          sizeof(Memory<kExperts, kList>)};
}
Kernel kernel_of(const RouteTopk::Problem& p, bool alone) {
#define SLUICE_KERNEL(experts, list, kind)                                        \
  if (tile::team_serves(p, experts, list, tile::kind))                            \
    return p.shared_slots > 0 ? kernel_by<experts, list, tile::kind, true>(alone) \
                              : kernel_by<experts, list, tile::kind, false>(alone);
  SLUICE_TEAM_KERNELS(SLUICE_KERNEL)
#undef SLUICE_KERNEL
  return {};
}

Status Launcher::enqueue(const Problem& p, const Args& a, Workspace, Stream stream) {
  const auto tokens = static_cast<unsigned>(p.route.tokens);
  const unsigned blocks = blocks_of(p.route);
  const Kernel k = kernel_of(p.route, blocks == 1);
  const unsigned teams = (tokens + blocks - 1) / blocks;
  uint32_t tile_shift = 16;  // more than the bits of a count, so every shift gives 0
  if (p.tile_rows > 0)
    for (tile_shift = 0; int64_t{1} << tile_shift < p.tile_rows;) ++tile_shift;
  const Few few{.logits = a.logits.data,
                .logits_stride = a.logits.stride[0],
                .bias = a.bias.as<const float>(),
                .bf16 = p.route.logits == DType::kBF16,
                .tokens = tokens,
                .top_k = static_cast<uint32_t>(p.route.top_k),
                .tokens_per_block = teams,
                .tile_shift = tile_shift,
                .tile_less_one = p.tile_rows > 0 ? static_cast<uint32_t>(p.tile_rows) - 1 : 0,
                .tiles_max = static_cast<uint32_t>(GroupRows::tiles_max(RouteGroup::group(p))),
                .shared_tiles = tile::shared_tiles(p),
                .shared = tile::shared_slots(p.route),
                .scale = p.route.scale_here ? static_cast<float>(p.route.scale) : 1.f,
                .ids = a.ids.as<int32_t>(),
                .row_count = a.row_count.as<int32_t>(),
                .row_begin = a.row_begin.as<int32_t>(),
                .order = a.order.as<int32_t>(),
                .position = a.position.as<int32_t>(),
                .tile_count = a.tile_count.as<int32_t>(),
                .tiles = a.tiles.as<int32_t>(),
                .weights = a.weights.as<float>()};
  const Launch how{.grid = {blocks, 1, 1},
                   .block = {static_cast<unsigned>(p.route.experts) * teams, 1, 1},
                   .shared_bytes = k.shared_bytes,
                   .cluster = {blocks, 1, 1}};
  return launch(route_group_fewtokens_sm90.name, k.call, how, stream, few);
}

}  // namespace

}  // namespace sluice::cuda
#endif
