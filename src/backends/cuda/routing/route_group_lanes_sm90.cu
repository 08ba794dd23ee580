// Routing of many tokens, from logits to grouped rows, in one launch. A few lanes of a warp choose the
// experts of a token (tile/lane_choice.cuh). Every CTA counts its own tokens' experts. The CTAs of a cluster
// send each other their counts; the CTAs of a larger grid write them to global memory and synchronize with a
// grid barrier (tile/grid_barrier.cuh). Then every CTA can compute the rows of its slots.
//
// Wins    from 64 tokens of 256 and 384 experts on, from 96 tokens of 128 on (routing_candidates.csv).
// Loses   for fewer tokens to route_group_fewtokens_sm90, by 1.2 to 2.1 us at one token with plain launches
//         and by 1.0 to 1.9 us with dependent launches: one thread per expert is done sooner.
// Limits  the requirements of need_team() (tile/team.h), row_align of 1, and 128 SMs if the CTAs form a grid.
// Source  original; the contract is ops/fused/route_group.h.
#include "backends/cuda/card.h"
#include "backends/cuda/tile/team.h"
#include "ops/fused/route_group.h"

namespace sluice::cuda {
namespace {

using Problem = RouteGroup::Problem;
constexpr int kClusterBlocks = 16;
constexpr int kGridBlocks = 128, kBlockTokens = 255;  // a CTA's counts are bytes
constexpr int kTokensMax = kGridBlocks * kBlockTokens;
constexpr int kThreadsMax = 512;

// How tokens are divided: lanes per token, and whether the CTAs form a cluster or a grid.
enum class Blocks { kCluster, kGrid };
struct Shares {
  Blocks blocks = Blocks::kCluster;
  int lanes = 32;
  uint32_t count = kClusterBlocks, tokens = 1;  // number of CTAs; tokens per CTA
  int threads = 256;
};

// Measured: with few lanes per token there are fewer instructions in total, with many lanes a token is done
// sooner, and a grid barrier costs about as much as four times the tokens per CTA (docs/lab/cuda-routing.md).
Shares shares_of(const RouteTopk::Problem& p) {
  const auto over = [](int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); };
  const bool scores = RouteTopk::chooses_by_score(p), many = p.experts > 256;
  const uint32_t cluster_max = !scores ? (p.top_k <= 4 ? 64 : 32) : many ? 12 : 16;
  Shares s{.tokens = over(p.tokens, kClusterBlocks)};
  if (s.tokens > cluster_max) {
    s.blocks = Blocks::kGrid;
    s.tokens = over(p.tokens, kGridBlocks);
    s.count = over(p.tokens, s.tokens);
  }
  if (scores) {
    s.lanes = s.tokens <= (many ? 16 : 8) ? 32 : many || s.tokens <= 16 ? 16 : 8;
  } else {
    s.lanes = s.tokens > 8 ? 8 : p.top_k <= 4 ? 32 : 16;
  }
  const int at_once = static_cast<int>(s.tokens) * s.lanes,
            least = static_cast<int>(std::max<int64_t>(p.experts, 256));
  s.threads = std::clamp((at_once + 31) / 32 * 32, least, kThreadsMax);
  return s;
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  tile::need_team(r, p.route, kTokensMax);
  r.need(p.row_align == 1, "row_align=1", "row_align", p.row_align);
  if (shares_of(p.route).blocks == Blocks::kGrid)
    r.need(d.cores >= kGridBlocks, "at least 128 SMs for this many tokens (grid barrier, one CTA per SM)",
           "SMs", d.cores);
  return r;
}

// Fitted to an H200, 1 to 32640 tokens. Sigmoids of 384 experts cost more than sigmoids of 256, and less than sqrt(softplus) of 384.
double cost_us(const Problem& p, const DeviceInfo&) {
  struct Fit {
    double cluster, cluster_token, grid, grid_token;  // *_token: per token of a CTA
  };
  const bool softplus = p.route.method == RoutingMethod::kSqrtSoftplus, many = p.route.experts > 256;
  const Fit f = !RouteTopk::chooses_by_score(p.route)
                    ? (p.route.top_k <= 4 ? Fit{2.82, 0.0215, 4.35, 0.030} : Fit{2.85, 0.038, 4.4, 0.050})
                : many ? (softplus ? Fit{4.75, 0.12, 6.0, 0.19} : Fit{4.1, 0.11, 5.6, 0.14})
                       : (softplus ? Fit{3.55, 0.13, 5.5, 0.125} : Fit{3.35, 0.085, 5.1, 0.095});
  const Shares s = shares_of(p.route);
  return s.blocks == Blocks::kCluster ? f.cluster + f.cluster_token * s.tokens
                                      : f.grid + f.grid_token * s.tokens;
}

size_t workspace_bytes(const Problem& p, const DeviceInfo&) {
  return shares_of(p.route).blocks == Blocks::kCluster ? 0
                                                       : static_cast<size_t>(kGridBlocks * p.route.experts);
}

struct Launcher {
  static Status enqueue(const Problem&, const RouteGroup::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouteGroup> route_group_lanes_sm90 = {
    .name = "cuda.route_group.lanes_sm90",
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
#include "backends/cuda/routing/route_group_lanes.cuh"

namespace sluice::cuda {
namespace {

using Args = RouteGroup::Args;
using group_lanes::Lanes;
static_assert(kClusterBlocks == group_lanes::kClusterBlocks && kGridBlocks == group_lanes::kGridBlocks &&
              kThreadsMax == group_lanes::kThreadsMax);
// So much shared memory that no second CTA fits on the SM. With dependent launches, two to four CTAs of
// a grid crowded onto the SMs that became free first while other SMs stayed empty, which cost 2 to 4 us.
constexpr size_t kAloneBytes = size_t{115} << 10;

// kGrid: the CTAs form a grid, otherwise a cluster.
template <int kExperts, int kList, tile::TeamKind kKind, int kLanes, bool kGrid>
__global__ void __launch_bounds__(kThreadsMax, 1) route_lanes(const __grid_constant__ Lanes p) {
  extern __shared__ uint4 shared[];
  const group_lanes::Cta<kExperts, kList, kKind, kLanes, kGrid> cta(p, shared);
  const float bias = cta.begin();
  tile::wait_for_previous();
  cta.choose(bias);
  __syncthreads();
  // Not at the start: CTAs of the next launch would all start on the SMs that become free first.
  tile::release_next();
  cta.send_own_counts();
  cta.write_choices();  // while the counts are in flight
  const uint32_t chosen_tiles = cta.place_experts(cta.wait_for_counts());
  cta.write_rows();
  cta.write_rest(chosen_tiles);
}

struct Kernel {
  void (*call)(Lanes) = nullptr;
  size_t (*shared)(const Lanes&, int threads) = nullptr;
};
template <int kExperts, int kList, tile::TeamKind kKind, int kLanes>
Kernel kernel_by(Blocks blocks) {
  return {blocks == Blocks::kGrid ? route_lanes<kExperts, kList, kKind, kLanes, true>
                                  : route_lanes<kExperts, kList, kKind, kLanes, false>,
          group_lanes::shared_bytes<kExperts, kList, kLanes>};
}
Kernel kernel_of(const RouteTopk::Problem& p, const Shares& s) {
#define SLUICE_KERNEL(experts, list, kind)                                      \
  if (tile::team_serves(p, experts, list, tile::kind))                          \
    return s.lanes == 32   ? kernel_by<experts, list, tile::kind, 32>(s.blocks) \
           : s.lanes == 16 ? kernel_by<experts, list, tile::kind, 16>(s.blocks) \
                           : kernel_by < experts,                               \
           list, tile::kind, experts <= 256 ? 8 : 16 > (s.blocks);
  SLUICE_TEAM_KERNELS(SLUICE_KERNEL)
#undef SLUICE_KERNEL
  return {};
}

Lanes lanes_of(const Problem& p, const Args& a, Workspace w, Stream stream, const Shares& s) {
  constexpr uintptr_t kBytes = 16;
  const bool whole = reinterpret_cast<uintptr_t>(a.logits.data) % kBytes == 0 &&
                     static_cast<uintptr_t>(bytes_of(p.route.logits, a.logits.stride[0])) % kBytes == 0;
  uint32_t tile_shift = 31;  // more than the bits of a count, so every shift gives 0
  if (p.tile_rows > 0)
    for (tile_shift = 0; int64_t{1} << tile_shift < p.tile_rows;) ++tile_shift;
  return {.rule = tile::token_rule(p.route),
          .logits = a.logits.data,
          .logits_stride = a.logits.stride[0],
          .bias = a.bias.as<const float>(),
          .bf16 = p.route.logits == DType::kBF16,
          .whole = whole,
          .tokens = static_cast<uint32_t>(p.route.tokens),
          .tokens_per_block = s.tokens,
          .words = (s.tokens + 31) / 32,
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
          .weights = a.weights.as<float>(),
          .counts = reinterpret_cast<uint8_t*>(w.data),
          .grid_words = queue_of(stream).grid_words};
}

Status Launcher::enqueue(const Problem& p, const Args& a, Workspace w, Stream stream) {
  const Shares s = shares_of(p.route);
  const Kernel kernel = kernel_of(p.route, s);
  const Lanes lanes = lanes_of(p, a, w, stream, s);
  const bool grid = s.blocks != Blocks::kCluster;
  const size_t shared = kernel.shared(lanes, s.threads);
  const Launch how{.grid = {s.count, 1, 1},
                   .block = {static_cast<unsigned>(s.threads), 1, 1},
                   .shared_bytes = grid ? std::max(shared, kAloneBytes) : shared,
                   .cluster = {grid ? 1u : s.count, 1, 1},
                   .cooperative = grid};
  return launch(route_group_lanes_sm90.name, kernel.call, how, stream, lanes);
}

}  // namespace

}  // namespace sluice::cuda
#endif
