// Router GEMM for 64 and more tokens: a cluster computes one tile of
// 64 or 128 tokens x 32 to 128 experts; k is split over its CTAs.
//
// All threads of a CTA copy 16-byte chunks of the CTA's part of the rows to shared memory by cp.async,
// swizzled for wgmma. A stage has 64 values of k, and as many stages are in flight as fit. A CTA sends its
// sums with one bulk copy to each CTA that writes logits. There are no producer warps and no tensor maps.
//
// Wins    64 tokens of 7168 x 256, 5120 x 384 and 7168 x 384 (router_candidates.csv, plain launches): 6.0 us against 6.3
//         us of tile_sm90 and 6.4 us of splitk_sm90 for 7168 x 256; 128 tokens of 7168 x 384.
// Loses   to splitk_sm90 for fewer tokens (there operands bypass shared memory), and for more to tile_sm90, whose copies are larger.
// Limits  see supports() below. The split of k depends on the number of tokens, so the kernel is not batch-invariant.
// Source  original; the contract is ops/router_gemm.h.
#include <algorithm>
#include "backends/cuda/card.h"
#include "backends/cuda/measured_cost.h"
#include "ops/router_gemm.h"

namespace sluice::cuda {
namespace {

Refusal supports(const RouterGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "wgmma operand");
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  need_multiple(r, "hidden", p.hidden, 8, "16-byte chunks of a row");
  r.need(p.tokens <= 2048, "tokens <= 2048 (every tile loads its rows again)", "tokens", p.tokens);
  r.need(p.hidden >= 128, "hidden >= 128 (shorter sums may miss their bound on tensor cores)", "hidden",
         p.hidden);
  return r;
}

double cost_us(const RouterGemm::Problem& p, const DeviceInfo& d) {
  return measured_us("cuda.router_gemm.wide_sm90", p, d);
}

struct Launcher {
  static Status enqueue(const RouterGemm::Problem&, const RouterGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<RouterGemm> router_gemm_wide_sm90 = {
    .name = "cuda.router_gemm.wide_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<RouterGemm>,
    .enqueue = enqueue_of<RouterGemm, Launcher>(),
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/router.h"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/split_sum.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda {
namespace {

constexpr int kGroupThreads = 128, kGroupTokens = 64;  // per warpgroup
constexpr int kStep = 64;                              // values of k in a stage
constexpr int kChunk = 8, kChunks = kStep / kChunk;    // elements per chunk; chunks of a row in a stage
constexpr int kRowBytes = tile::kSwizzledRowBytes;
constexpr int kAlignment = 1024;  // alignment of a stage, required by swizzle.cuh

template <int kGroups, int kExperts>
constexpr int kStageBytes = (kGroups * kGroupTokens + kExperts) * kRowBytes;

// Copies a step of kRows rows to a stage, beginning at element `numbers` of each row; writes zeros past `rows`
// and `hidden`. from: the start of this thread's first row; its next row is kThreads / kChunks rows further.
template <int kRows, int kThreads>
__device__ __forceinline__ void copy_rows(uint32_t stage, const __nv_bfloat16* from, int64_t stride, int rows,
                                          int numbers, int hidden) {
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const bool inside = numbers + chunk * kChunk < hidden;
  const __nv_bfloat16* source = from + numbers + chunk * kChunk;
  constexpr int kEach = kThreads / kChunks;
#pragma unroll
  for (int i = 0; i < (kRows + kEach - 1) / kEach; ++i) {
    const int row = first + i * kEach;
    if (kRows % kEach != 0 && row >= kRows) break;
    const bool there = inside && row < rows;
    tile::copy_16(
        stage + tile::swizzled(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk * kChunk * 2)),
        there ? source + i * kEach * stride : from, there);
  }
}

// copy_rows() for rows that may start at any address: slower, because it uses plain loads.
template <int kRows, int kThreads>
__device__ __forceinline__ void copy_rows_plainly(uint32_t stage, const __nv_bfloat16* from, int64_t stride,
                                                  int rows, int numbers, int hidden) {
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const bool inside = numbers + chunk * kChunk < hidden;
  constexpr int kEach = kThreads / kChunks;
#pragma unroll 1
  for (int row = first; row < kRows; row += kEach) {
    uint32_t pairs[kChunk / 2] = {};
    if (inside && row < rows) {
      const auto* source =
          reinterpret_cast<const uint16_t*>(from + (row - first) * stride + numbers + chunk * kChunk);
#pragma unroll
      for (int i = 0; i < kChunk / 2; ++i)
        pairs[i] = source[2 * i] | static_cast<uint32_t>(source[2 * i + 1]) << 16;
    }
    tile::store_shared(
        stage + tile::swizzled(static_cast<uint32_t>(row), static_cast<uint32_t>(chunk * kChunk * 2)),
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
  }
}

// The pairs of logits of a tile have index i * threads + thread, where i is the index of a thread's pair (wgmma.cuh).
template <int kOfGroups, int kOfExperts, int kOfStages>
struct Shape {
  static constexpr int kGroups = kOfGroups, kExperts = kOfExperts, kStages = kOfStages;
  static constexpr int kThreads = kGroups * kGroupThreads, kTokens = kGroups * kGroupTokens;
  static constexpr int kHeld = kExperts / 4, kPairs = kHeld * kThreads;  // pairs per thread; pairs per tile
  static constexpr int kStage = kStageBytes<kGroups, kExperts>;
  static constexpr int kAhead = kStages - 1;  // stages in flight
  static_assert(kStages * kStage >= kPairs * static_cast<int>(sizeof(float2)),
                "sums pass through the stages");
  using Sums = float[kExperts / 2];
};

// The tile of the CTA, and its rank among the CTAs that split k.
struct Place {
  int blocks, rank, first_expert, first_token;
};

// The CTA's part of the rows of a tile, and the copies of that part to the stages, 64 values of k at a time.
template <class C>
struct Loads {
  const RouterParameters& p;
  uint32_t stage_0;
  int begin, steps, experts, tokens;
  const __nv_bfloat16 *w, *x;

  __device__ __forceinline__ Loads(const RouterParameters& its_p, const Place& at, uint32_t its_stages)
      : p(its_p), stage_0(its_stages) {
    const int all = (p.hidden + kStep - 1) / kStep;
    begin = all * at.rank / at.blocks, steps = all * (at.rank + 1) / at.blocks - begin;
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    w = static_cast<const __nv_bfloat16*>(p.w) + int64_t{at.first_expert + row} * p.hidden;
    x = static_cast<const __nv_bfloat16*>(p.x) + (at.first_token + row) * p.x_stride;
    experts = p.experts - at.first_expert, tokens = p.tokens - at.first_token;
  }
  __device__ __forceinline__ uint32_t stage_of(int step) const {
    return stage_0 + static_cast<uint32_t>(step % C::kStages * C::kStage);
  }
  __device__ __forceinline__ void load_w(int step) const {
    if (step < steps)
      copy_rows<C::kExperts, C::kThreads>(stage_of(step) + C::kTokens * kRowBytes, w, p.hidden, experts,
                                          (begin + step) * kStep, p.hidden);
  }
  __device__ __forceinline__ void load_x(int step) const {
    if (step >= steps) return;
    const int numbers = (begin + step) * kStep;
    if (p.x_wide) {
      copy_rows<C::kTokens, C::kThreads>(stage_of(step), x, p.x_stride, tokens, numbers, p.hidden);
    } else {
      copy_rows_plainly<C::kTokens, C::kThreads>(stage_of(step), x, p.x_stride, tokens, numbers, p.hidden);
    }
  }
  // Starts the copies of the first stages; copies of weights before the wait for the previous launch.
  __device__ __forceinline__ void start() const {
#pragma unroll 1
    for (int s = 0; s < C::kAhead; ++s) load_w(s);
    tile::wait_for_previous();
#pragma unroll 1
    for (int s = 0; s < C::kAhead; ++s) {
      load_x(s);
      tile::end_copies();
    }
  }
};

// Computes a warpgroup's sums over the CTA's part of k.
template <class C>
__device__ __forceinline__ void multiply(typename C::Sums& sums, const Loads<C>& of,
                                         const std::byte* stages) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
#pragma unroll
  for (float& sum : sums) sum = 0;
#pragma unroll 1
  for (int s = 0; s < of.steps; ++s) {
    tile::wait_copies<C::kAhead - 1>();
    tile::fence_for_async();
    __syncthreads();  // all threads' copies of this stage have arrived, and all warpgroups have read the previous stage
    of.load_w(s + C::kAhead);
    of.load_x(s + C::kAhead);
    tile::end_copies();
    const std::byte* stage = stages + s % C::kStages * C::kStage;
    const uint64_t a = tile::describe_tile(stage + group * kGroupTokens * kRowBytes);
    const uint64_t b = tile::describe_tile(stage + C::kTokens * kRowBytes);
    tile::hold(sums);
    tile::fence_operands();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k)
      tile::multiply<C::kExperts>(sums, a + k * tile::kNext16, b + k * tile::kNext16, 1);
    tile::commit_group();
    tile::wait_groups<0>();
    tile::hold(sums);
  }
  tile::wait_copies<0>();
  __syncthreads();
}

// Sends sums to the CTAs that write them, from the memory of the ring. Returns when the other CTAs' sums for this CTA have arrived.
template <class C>
__device__ __forceinline__ void exchange(const typename C::Sums& sums, float2* staged,
                                         const tile::SplitInbox& inbox, const Place& at) {
  const int share = C::kPairs / at.blocks;
#pragma unroll
  for (int i = 0; i < C::kHeld; ++i)
    staged[i * C::kThreads + threadIdx.x] = make_float2(sums[2 * i], sums[2 * i + 1]);
  tile::fence_for_async();
  tile::cluster_wait();
  if (threadIdx.x == 0) inbox.expect(static_cast<uint32_t>((C::kPairs - share) * sizeof(float2)));
  __syncthreads();
  for (int i = 1 + static_cast<int>(threadIdx.x) / 32; i < at.blocks; i += C::kThreads / 32) {
    const int owner = tile::rank_after(at.rank, i, at.blocks);
    inbox.of(static_cast<uint32_t>(owner))
        .send_by_warp(static_cast<uint32_t>(at.rank * share * sizeof(float2)), &staged[owner * share],
                      static_cast<uint32_t>(share * sizeof(float2)));
  }
  inbox.wait();
}

// Adds up and writes the logits of this CTA's share.
template <class C>
__device__ __forceinline__ void write(const RouterParameters& p, const float2* staged, const float2* received,
                                      const Place& at) {
  const int share = C::kPairs / at.blocks;
  for (int own = static_cast<int>(threadIdx.x); own < share; own += C::kThreads) {
    const int pair = at.rank * share + own, i = pair / C::kThreads, thread = pair % C::kThreads;
    const int expert = at.first_expert + i / 2 * 8 + thread % 4 * 2;
    const int token = at.first_token + thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
    if (token >= p.tokens || expert >= p.experts) continue;
    float2 total = {0, 0};
    for (int j = 0; j < at.blocks; ++j)
      tile::add_to(total, j == at.rank ? staged[pair] : received[j * share + own]);
    if (p.bias) {
      const auto* bias = static_cast<const __nv_bfloat16*>(p.bias);
      total.x += tile::to_f32(bias[expert]);
      if (expert + 1 < p.experts) total.y += tile::to_f32(bias[expert + 1]);
    }
    store_logits(p, token, expert, total);
  }
}

// Grid: CTAs of a cluster (splits of k), tiles of experts, tiles of tokens. Shared memory:
// the stages; behind them the partial sums that the other CTAs send, [CTAs][share] pairs.
template <class C>
__global__ void __launch_bounds__(C::kThreads) wide(const __grid_constant__ RouterParameters p) {
  extern __shared__ std::byte dynamic[];
  __shared__ uint64_t received_all;
  std::byte* stages = dynamic + (kAlignment - tile::shared_address(dynamic) % kAlignment) % kAlignment;
  float2 *staged = reinterpret_cast<float2*>(stages),
         *received = reinterpret_cast<float2*>(stages + C::kStages * C::kStage);
  const tile::SplitInbox inbox{tile::shared_address(received), tile::shared_address(&received_all)};
  const Place at = {static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x),
                    static_cast<int>(blockIdx.y) * C::kExperts, static_cast<int>(blockIdx.z) * C::kTokens};
  tile::release_next();
  if (threadIdx.x == 0) {
    tile::barrier_init(&received_all, 1);
    tile::barrier_visible();
  }
  __syncwarp();
  tile::cluster_arrive();
  const Loads<C> loads(p, at, tile::shared_address(stages));
  loads.start();

  typename C::Sums sums;
  multiply(sums, loads, stages);
  exchange<C>(sums, staged, inbox, at);
  tile::cluster_arrive();
  write<C>(p, staged, received, at);
  tile::cluster_wait();  // a bulk copy reads its source until it has arrived
}

struct Tile {
  int tokens, experts, shared_bytes;
  void (*kernel)(RouterParameters);
};

template <int kGroups, int kExperts, int kStages>
constexpr Tile tile_of() {
  using C = Shape<kGroups, kExperts, kStages>;
  constexpr int kSums = C::kTokens * kExperts * static_cast<int>(sizeof(float));
  constexpr int kBytes = kAlignment + kStages * C::kStage + kSums;
  static_assert(kBytes + 64 <= 227 << 10);
  return {C::kTokens, kExperts, kBytes, wide<C>};
}

const Tile kTiles[] = {
    tile_of<1, 32, 7>(), tile_of<1, 32, 16>(), tile_of<1, 64, 6>(),  tile_of<1, 64, 12>(),
    tile_of<2, 32, 9>(), tile_of<2, 64, 7>(),  tile_of<2, 128, 5>(),
};

// A tile, and the number of CTAs among which k is split.
struct Cut {
  const Tile* tile;
  int blocks;
};

constexpr int kHalfOfAnSM = 113 << 10;

int parts(int64_t size, int64_t of) { return static_cast<int>((size + of - 1) / of); }

// Fitted to an H200, over 8 shapes and 32 to 4096 tokens: the split of least cost is the fastest or at most 1.1x slower.
// A cluster must fit into one GPC. If a CTA fills an SM, 66 clusters of 2 are resident, 30 of 4, 15 of 8 or 7 of 16; one
// more cluster makes a second wave. CTAs that fill half an SM share SMs as soon as there are more than 66 of them.
double cut_us(const Cut& cut, const RouterGemm::Problem& p) {
  constexpr double kBaseUs = 2.39, kWaveUs = 0.97, kKilobyteUs = 0.0172, kStepUs = 0.043,
                   kLogitUs = 0.207 / 1024;
  constexpr double kAlone = 66;
  const int room = cut.blocks == 2 ? 66 : cut.blocks == 4 ? 30 : cut.blocks == 8 ? 15 : 7;
  const bool half = cut.tile->shared_bytes <= kHalfOfAnSM;
  const int clusters = parts(p.tokens, cut.tile->tokens) * parts(p.experts, cut.tile->experts);
  const double waves = parts(clusters, half ? 2 * room : room);
  const double shared = half ? std::clamp(clusters * cut.blocks / kAlone, 1.0, 2.0) : 1.0;
  const double steps = parts(parts(p.hidden, kStep), cut.blocks);
  const double kilobytes = (cut.tile->tokens + cut.tile->experts) * steps * kRowBytes / 1024;
  const double logits = cut.tile->tokens * cut.tile->experts;
  return kBaseUs + (waves - 1) * kWaveUs +
         waves * shared * (kilobytes * kKilobyteUs + steps * kStepUs + logits * kLogitUs);
}

Cut cut_for(const RouterGemm::Problem& p) {
  constexpr int kFewest = 2, kMax = 16;
  Cut best{};
  double least = 0;
  for (const Tile& tile : kTiles) {
    for (int blocks = kFewest; blocks <= kMax; blocks *= 2) {
      const Cut cut{&tile, blocks};
      const double us = cut_us(cut, p);
      if (best.tile && us >= least) continue;
      best = cut;
      least = us;
    }
  }
  return best;
}

Status launch_cut(const RouterGemm::Problem& p, const RouterParameters& parameters, const Cut& cut,
                  Stream stream) {
  const auto blocks = static_cast<unsigned>(cut.blocks);
  const Launch how{.grid = {blocks, static_cast<unsigned>(parts(p.experts, cut.tile->experts)),
                            static_cast<unsigned>(parts(p.tokens, cut.tile->tokens))},
                   .block = {static_cast<unsigned>(cut.tile->tokens / kGroupTokens * kGroupThreads), 1, 1},
                   .shared_bytes = static_cast<size_t>(cut.tile->shared_bytes),
                   .cluster = {blocks, 1, 1}};
  return launch(router_gemm_wide_sm90.name, cut.tile->kernel, how, stream, parameters);
}

Status Launcher::enqueue(const RouterGemm::Problem& p, const RouterGemm::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  return launch_cut(p, router_parameters(p, a), cut_for(p), stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
