// Routes many tokens, from logits to grouped rows, in one launch. A few lanes of a warp choose the experts of a token
// (tile/lane_choice.cuh). Each CTA counts its own tokens' experts. The CTAs of a cluster send each other their counts. The CTAs of
// a larger grid write them to global memory and synchronise by a grid barrier (tile/grid_barrier.cuh). Then each CTA knows the
// rows of its slots.
//
// Wins    at 64 tokens of 256 and 384 experts and more, at 96 tokens of 128 and more (routing_candidates.csv).
// Loses   to route_group_fewtokens_sm90 below, by 1.2 to 2.1 us at one token with plain launches and by 1.0 to 1.9 us with
//         dependent ones: one thread per expert finishes sooner.
// Limits  the requirements of need_team() (tile/few_tokens.cuh), row_align of 1, and 128 SMs if the CTAs form a grid.
// Source  original; the contract is ops/route_group.h.
#include "backends/cuda/card.h"
#include "backends/cuda/tile/team.h"
#include "ops/route_group.h"

namespace sluice::cuda {
namespace {

using Problem = RouteGroup::Problem;
constexpr int kClusterBlocks = 16;
constexpr int kGridBlocks = 128, kBlockTokens = 255;  // a CTA's counts are bytes
constexpr int kTokensMost = kGridBlocks * kBlockTokens;
constexpr int kThreadsMost = 512;

// How tokens are divided: lanes per token, and whether the CTAs form a cluster or a grid.
enum class Blocks { kCluster, kGrid };
struct Shares {
  Blocks blocks = Blocks::kCluster;
  int lanes = 32;
  uint32_t count = kClusterBlocks, tokens = 1;  // number of CTAs; tokens per CTA
  int threads = 256;
};

// Measured: few lanes per token need the fewest instructions, many lanes finish sooner, and a grid barrier costs about as much as
// four times the tokens in each CTA (docs/lab/cuda-routing.md).
Shares shares_of(const RouteTopk::Problem& p) {
  const auto over = [](int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); };
  const bool scores = RouteTopk::chooses_by_score(p), many = p.experts > 256;
  const uint32_t cluster_most = !scores ? (p.top_k <= 4 ? 64 : 32) : many ? 12 : 16;
  Shares s{.tokens = over(p.tokens, kClusterBlocks)};
  if (s.tokens > cluster_most) {
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
  s.threads = std::clamp((at_once + 31) / 32 * 32, least, kThreadsMost);
  return s;
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  tile::need_team(r, p.route, kTokensMost);
  r.need(p.row_align == 1, "row_align=1", "row_align", p.row_align);
  if (shares_of(p.route).blocks == Blocks::kGrid)
    r.need(d.cores >= kGridBlocks, "128 SMs for so many tokens (CTAs wait for each other, one per SM)", "SMs",
           d.cores);
  return r;
}

// Fitted to an H200, 1 to 32640 tokens. Sigmoids of 384 experts cost more than sigmoids of 256 and less than sqrt(softplus).
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
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"
#include "backends/cuda/tile/lane_choice.cuh"
#include "backends/cuda/tile/shared_slots.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda {
namespace {

using Args = RouteGroup::Args;
// Count vectors that a CTA adds up: one per CTA of the cluster, or one per group of CTAs of the grid.
constexpr int kSums = 16;
// So much shared memory that no second CTA fits on the SM. With dependent launches, two to four CTAs of a grid crowded onto the SMs
// that became free first while other SMs stayed empty, which cost 2 to 4 us.
constexpr size_t kAloneBytes = size_t{115} << 10;
struct Lanes {
  tile::TokenRule rule;
  const void* logits;
  int64_t logits_stride;
  const float* bias;
  int bf16, whole;  // whole: rows are 16-byte aligned
  uint32_t tokens, tokens_per_block, words;
  uint32_t tile_shift, tile_less_one;  // without tiles: a shift that gives every expert 0 tiles, and 0
  uint32_t tiles_max, shared_tiles;    // shared_tiles: tiles of all shared experts
  tile::SharedSlots shared;
  float scale;
  int32_t *ids, *row_count, *row_begin, *order, *position, *tile_count, *tiles;
  float* weights;
  uint8_t* counts;       // [CTAs, experts] of a grid
  uint32_t* grid_words;  // a zero word, left zero at the end
};

template <int kExperts, int kList, int kLanes>
struct alignas(16) Memory {
  using Shape = tile::LaneShape<kExperts, kList, kLanes>;
  uint64_t arrived;                             // mbarrier: the counts of the cluster's CTAs have arrived
  alignas(16) uint16_t count[kSums][kExperts];  // counts of a CTA or of a group of CTAs
  // In a cluster: this CTA's counts. In a grid: the counts of the CTAs before it within its group.
  alignas(16) uint16_t part[kExperts];
  alignas(16) std::byte bias[Shape::template kRowBytes<4>];
  uint32_t begin[kExperts];            // first row
  uint32_t before[kExperts];           // rows of the CTAs before this one
  uint32_t tile_begin[kExperts];       // first tile
  uint32_t of_warp[2][kExperts / 32];  // rows and tiles per warp
  tile::LaneMemory<Shape::kTokens> warp[kThreadsMost / 32];
};
// Follows Memory: the mask [experts, words], slots and weights [tokens per CTA, kList], and each warp's rows of logits.
template <int kExperts, int kList, int kLanes>
size_t shared_bytes(const Lanes& p, int threads) {
  using M = Memory<kExperts, kList, kLanes>;
  const auto warps = static_cast<size_t>(threads / 32), tokens = size_t{p.tokens_per_block};
  const size_t a_pass = warps * M::Shape::kTokens, rows = tokens > a_pass ? 2 * a_pass : a_pass;
  const size_t slots = tokens * kList;
  return sizeof(M) + size_t{kExperts} * p.words * 4 + (slots * 8 + 15) / 16 * 16 +
         rows * M::Shape::template kRowBytes<4>;
}

// The number of this CTA's tokens that chose an expert.
__device__ __forceinline__ uint32_t count_bits(const uint32_t* mask, uint32_t words, uint32_t expert) {
  uint32_t count = __popc(mask[expert * words]);
#pragma unroll 1
  for (uint32_t w = 1; w < words; ++w) count += __popc(mask[expert * words + w]);
  return count;
}

// Sends this CTA's counts, in m.part, to all CTAs of the cluster. A warp serves some of the CTAs; a lane sends 8 experts.
template <class M>
__device__ __forceinline__ void send_counts(M& m, uint32_t lane, uint32_t warp, uint32_t warps) {
  constexpr uint32_t kExperts = sizeof(m.part) / sizeof(uint16_t);
#pragma unroll 1
  for (uint32_t e = 8 * lane; e < kExperts; e += 256) {
    const uint4 counts = *reinterpret_cast<const uint4*>(m.part + e);
    const uint32_t at = tile::shared_address(&m.count[tile::cluster_rank()][e]);
#pragma unroll 1
    for (uint32_t to = warp; to < kClusterBlocks; to += warps)
      tile::store_remote(tile::remote_address(at, to), counts,
                         tile::remote_address(tile::shared_address(&m.arrived), to));
  }
}

// Adds up rows of 16 bytes, byte by byte, into 16 numbers: the rows among kRows for which take(row) is true. small: no byte sum
// of 4 rows reaches 256.
template <int kRows, class Take>
__device__ __forceinline__ void add_bytes(uint16_t* to, const uint4 (&row)[kRows], bool small, Take take) {
  uint32_t even[4] = {}, odd[4] = {}, bytes[4] = {};
  const auto widen = [&] {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      even[w] += bytes[w] & 0x00ff00ff, odd[w] += bytes[w] >> 8 & 0x00ff00ff;
      bytes[w] = 0;
    }
  };
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (take(i)) bytes[0] += row[i].x, bytes[1] += row[i].y, bytes[2] += row[i].z, bytes[3] += row[i].w;
    if (!small || i % 4 == 3) widen();
  }
#pragma unroll
  for (int w = 0; w < 4; w += 2) {
    const auto pair = [&](int k) { return __byte_perm(even[k], odd[k], 0x5410); };
    const auto next = [&](int k) { return __byte_perm(even[k], odd[k], 0x7632); };
    reinterpret_cast<uint4*>(to)[w / 2] = uint4{pair(w), next(w), pair(w + 1), next(w + 1)};
  }
}

// Reads the counts of all CTAs of the grid. Adds them up in kSums groups of adjacent CTAs, and sets `part` to the counts of the
// CTAs before this one in its group. Returns the number of this CTA's group.
template <class M>
__device__ __forceinline__ uint32_t gather_counts(M& m, const Lanes& p, uint32_t tid) {
  constexpr uint32_t kExperts = sizeof(m.part) / sizeof(uint16_t), kColumns = kExperts / 16;
  constexpr int kEach = kGridBlocks / kSums;
  const uint32_t sum = tid / kColumns, column = tid % kColumns * 16;
  const uint32_t mine = blockIdx.x / kEach;
  if (sum >= kSums) return mine;
  uint4 row[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t block = sum * kEach + i;
    row[i] = block < gridDim.x ? __ldcg(reinterpret_cast<const uint4*>(p.counts + block * kExperts + column))
                               : uint4{0, 0, 0, 0};
  }
  const bool small = p.tokens_per_block < 64;
  add_bytes(m.count[sum] + column, row, small, [](int) { return true; });
  if (sum == mine)
    add_bytes(m.part + column, row, small,
              [&](int i) { return static_cast<uint32_t>(i) < blockIdx.x % kEach; });
  return mine;
}

// kGrid: the CTAs form a grid, otherwise a cluster.
template <int kExperts, int kList, tile::TeamKind kKind, int kLanes, bool kGrid>
__global__ void __launch_bounds__(kThreadsMost, 1) route_lanes(const __grid_constant__ Lanes p) {
  extern __shared__ uint4 shared[];
  using M = Memory<kExperts, kList, kLanes>;
  using Shape = typename M::Shape;
  auto& m = *reinterpret_cast<M*>(shared);
  const uint32_t tid = threadIdx.x, threads = blockDim.x, lane = tid % 32, warps = threads / 32;
  // The shuffle tells the compiler that this is warp-uniform.
  const uint32_t warp = __shfl_sync(tile::kAllLanes, tid / 32, 0);
  const uint32_t sub = lane % kLanes, top_k = static_cast<uint32_t>(p.rule.top_k);
  const uint32_t first = blockIdx.x * p.tokens_per_block;
  const uint32_t here = first < p.tokens ? min(p.tokens_per_block, p.tokens - first) : 0;
  const uint32_t slots = here * kList, slots_most = p.tokens_per_block * kList;
  auto* mask = reinterpret_cast<uint32_t*>(&m + 1);
  uint32_t* slot = mask + kExperts * p.words;  // the expert, later with its rank << 16
  auto* weight = reinterpret_cast<float*>(slot + slots_most);
  std::byte* rows = reinterpret_cast<std::byte*>(slot + (slots_most * 2 + 3) / 4 * 4);
  constexpr uint32_t kRowBytes = Shape::template kRowBytes<4>;
#pragma unroll 1
  for (uint32_t i = tid; i < kExperts * p.words; i += threads) mask[i] = 0;
  float bias = 0;
  if (tile::kTeamRules[kKind].by_score && p.bias && tid < kExperts) bias = p.bias[tid];
  if (!kGrid) {
    if (tid == 0) {
      tile::barrier_init(&m.arrived, 1);
      tile::barrier_visible();
    }
    tile::cluster_arrive();
  }
  tile::wait_for_previous();
  // The tokens of a pass, Shape::kTokens per warp. Surplus lanes repeat the last token and do not write.
  const uint32_t a_pass = warps * Shape::kTokens;
  const auto rows_of = [&](uint32_t pass) {
    return rows + (pass % 2 * a_pass + warp * Shape::kTokens) * kRowBytes;
  };
  const auto fetch = [&](uint32_t start, uint32_t pass) {
    const uint32_t t = start + warp * Shape::kTokens + lane / kLanes;
    if (start + warp * Shape::kTokens < here) {
      const int64_t at = (first + min(t, here - 1)) * p.logits_stride;
      std::byte* to = rows_of(pass) + lane / kLanes * kRowBytes;
      if (p.bf16) {
        tile::fetch_row<Shape, kLanes>(to, static_cast<const __nv_bfloat16*>(p.logits) + at, p.whole, sub);
      } else {
        tile::fetch_row<Shape, kLanes>(to, static_cast<const float*>(p.logits) + at, p.whole, sub);
      }
    }
    tile::end_copies();
  };
  fetch(0, 0);
  if (tile::kTeamRules[kKind].by_score && tid < kExperts)
    reinterpret_cast<float*>(m.bias +
                             tid / Shape::kPerLane * Shape::template kPitch<4>)[tid % Shape::kPerLane] = bias;
  __syncthreads();  // mask and bias
#pragma unroll 1
  for (uint32_t start = 0, pass = 0; start < here; start += a_pass, ++pass) {
    const uint32_t t = start + warp * Shape::kTokens + lane / kLanes;
    if (start + a_pass < here) {
      fetch(start + a_pass, pass + 1);
      tile::wait_copies<1>();
    } else {
      tile::wait_copies<0>();
    }
    __syncwarp();
    if (start + warp * Shape::kTokens >= here) continue;
    const tile::Chosen chosen = tile::choose_by_lanes<kExperts, kList, kLanes, kKind>(
        p.rule, rows_of(pass), p.bf16, reinterpret_cast<float*>(m.bias), m.warp[warp]);
    if (t < here && sub < top_k) {
      const auto id = static_cast<uint32_t>(chosen.expert);
      slot[t * kList + sub] = id;
      weight[t * kList + sub] = chosen.weight * p.scale;
      atomicOr(mask + id * p.words + t / 32, 1u << t % 32);
    }
  }
  __syncthreads();
  // Not released at the start: CTAs of the next launch would crowd the SMs that become free first.
  tile::release_next();
  if (tid < kExperts) {
    const uint32_t count = count_bits(mask, p.words, tid);
    if (kGrid) {
      p.counts[blockIdx.x * kExperts + tid] = static_cast<uint8_t>(count);
    } else {
      m.part[tid] = static_cast<uint16_t>(count);
    }
  }
  __syncthreads();
  if (kGrid) {
    if (tid == 0) tile::arrive_at_grid_barrier(p.grid_words);
  } else {
    tile::cluster_wait();
    if (tid == 0) tile::barrier_expect(&m.arrived, sizeof m.count);
    send_counts(m, lane, warp, warps);
  }
  // While the counts are in flight: work that does not depend on the other CTAs.
#pragma unroll 1
  for (uint32_t i = tid; i < slots; i += threads) {
    const uint32_t t = i / kList, k = i % kList, at = (first + t) * p.shared.all + k;
    if (k >= top_k) continue;
    const uint32_t id = slot[i];
    const uint32_t* bits = mask + id * p.words;
    uint32_t rank = __popc(bits[t / 32] & ((1u << t % 32) - 1));
#pragma unroll 1
    for (uint32_t w = 0; w < t / 32; ++w) rank += __popc(bits[w]);
    slot[i] = id | rank << 16;
    p.ids[at] = static_cast<int>(id);
    p.weights[at] = weight[i];
  }
  uint32_t mine = blockIdx.x;
  if (kGrid) {
    if (tid == 0) tile::wait_at_grid_barrier(p.grid_words, gridDim.x);
    __syncthreads();
    if (tid == 0) tile::leave_grid_barrier(p.grid_words, gridDim.x);
    mine = gather_counts(m, p, tid);
    __syncthreads();
  } else {
    tile::barrier_wait(&m.arrived, 0);
  }
  // Rows and tiles before each expert: prefix sums of two numbers, or of one word with 16 bits for each.
  constexpr int kNumbers = kGrid ? 2 : 1;
  uint32_t total = 0, own[kNumbers] = {}, up_to[kNumbers] = {}, all[kNumbers] = {};
  if (tid < kExperts) {
    uint32_t before = kGrid ? m.part[tid] : 0;
#pragma unroll
    for (uint32_t s = 0; s < kSums; ++s) {
      const uint32_t n = m.count[s][tid];
      total += n;
      before += s < mine ? n : 0;
    }
    m.before[tid] = before;
    const uint32_t tiles = (total + p.tile_less_one) >> p.tile_shift;
    own[0] = kGrid ? total : total | tiles << 16;
    own[kNumbers - 1] = kGrid ? tiles : own[0];
#pragma unroll
    for (int k = 0; k < kNumbers; ++k) {
      up_to[k] = own[k];
      tile::add_lanes_before(static_cast<int>(lane), up_to[k]);
      if (lane == 31) m.of_warp[k][warp] = up_to[k];
    }
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kNumbers; ++k)
#pragma unroll
    for (uint32_t w = 0; w < kExperts / 32; ++w) {
      const uint32_t n = m.of_warp[k][w];
      up_to[k] += w < warp ? n : 0;
      all[k] += n;
    }
  const auto rows_in = [](const uint32_t(&n)[kNumbers]) { return kGrid ? n[0] : n[0] & 0xffff; };
  const auto tiles_in = [](const uint32_t(&n)[kNumbers]) { return kGrid ? n[kNumbers - 1] : n[0] >> 16; };
  const uint32_t chosen_tiles = tiles_in(all), all_tiles = chosen_tiles + p.shared_tiles;
  if (tid < kExperts) {
    const uint32_t begin = rows_in(up_to) - total;
    m.begin[tid] = begin;
    m.tile_begin[tid] = tiles_in(up_to) - tiles_in(own);
    if (blockIdx.x == 0) {
      p.row_count[tid] = static_cast<int>(total);
      p.row_begin[tid] = static_cast<int>(begin);
      if (tid == kExperts - 1) p.row_begin[kExperts] = static_cast<int>(begin + total);
      if (tid == 0 && p.tile_count) *p.tile_count = static_cast<int>(all_tiles);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = tid; i < slots; i += threads) {
    const uint32_t k = i % kList, at = (first + i / kList) * p.shared.all + k;
    if (k >= top_k) continue;
    const uint32_t id = slot[i] & 0xffff, within = m.before[id] + (slot[i] >> 16), row = m.begin[id] + within;
    p.position[at] = static_cast<int>(row);
    p.order[row] = static_cast<int>(at);
    if (p.tiles_max > 0 && (within & p.tile_less_one) == 0)
      reinterpret_cast<int2*>(p.tiles)[m.tile_begin[id] + (within >> p.tile_shift)] =
          int2{static_cast<int>(id), static_cast<int>(row)};
  }
#pragma unroll 1
  for (uint32_t i = all_tiles + blockIdx.x * threads + tid; i < p.tiles_max; i += gridDim.x * threads)
    reinterpret_cast<int2*>(p.tiles)[i] = int2{-1, -1};
  if (p.shared.count == 0) return;
#pragma unroll 1
  for (uint32_t t = tid; t < here; t += threads) {
#pragma unroll 1
    for (uint32_t which = 0; which < p.shared.count; ++which)
      tile::put_shared_row(p, first + t, which, p.tokens * top_k, chosen_tiles);
  }
}

struct Kernel {
  void (*call)(Lanes) = nullptr;
  size_t (*shared)(const Lanes&, int threads) = nullptr;
};
template <int kExperts, int kList, tile::TeamKind kKind, int kLanes>
Kernel kernel_by(Blocks blocks) {
  return {blocks == Blocks::kGrid ? route_lanes<kExperts, kList, kKind, kLanes, true>
                                  : route_lanes<kExperts, kList, kKind, kLanes, false>,
          shared_bytes<kExperts, kList, kLanes>};
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
