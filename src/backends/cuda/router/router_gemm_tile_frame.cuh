// A router GEMM tile kernel without its mainloop: barriers, the start of the producer
// warps, the exchange of partial sums, the store of the logits, and the launch.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>
#include <span>
#include <string>

#include "backends/cuda/launch.h"
#include "backends/cuda/router/router_gemm_tile.h"
#include "backends/cuda/router/router_gemm_tile_fetch.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/split_sum.cuh"
#include "backends/cuda/tile/tensor_map.h"
#include "backends/cuda/tile/vector.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda {

constexpr int kRouterConsumers = 1;  // named barrier of the consumer warps

using tile::uniform;

template <int kGroups, int kTokens, RouterSource kSource, class W>
struct RouterTileFrame : RouterFetch<kGroups, kTokens, kSource, W> {
  using Base = RouterFetch<kGroups, kTokens, kSource, W>;
  using Base::kExperts, Base::kWarps, Base::kThreads;
  using Parameters = RouterTileParameters;
  using Place = RouterTilePlace;
  using Sums = float[kTokens / 2];

  // The tile of sums in shared memory, in place of the ring: one row per token, experts
  // contiguous. 16 bytes of padding per row avoid bank conflicts of a warp's stores.
  static constexpr int kPitch = kExperts + 4;

  // Stores `sums` to the tile. row: among a warp's first 8 experts, the one of this lane's first registers.
  static __device__ void put_sums(const Sums& sums, float* tile_sums, int row) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int expert = warp / kGroupWarps * kGroupExperts + warp % kGroupWarps * 16 + row;
    float* const at = tile_sums + 2 * (lane % 4) * kPitch + expert;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i)  // for the order of registers see tile/wgmma.cuh
      at[(i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8] = sums[i];
  }

  // The tokens [first, first + count) of the tile whose logits split `part` writes.
  struct Range {
    int first, count;
    __device__ Range(const Parameters& p, int part)
        : first(part * p.tokens_each + min(part, p.tokens_more)),
          count(p.tokens_each + (part < p.tokens_more)) {}
    __device__ int bytes() const { return count * kPitch * static_cast<int>(sizeof(float)); }
    // Bytes that this split receives from each of the other splits. Stores leave out the padding of rows.
    __device__ int message_bytes(const Parameters& p) const {
      return p.by_stores ? count * kExperts * static_cast<int>(sizeof(float)) : bytes();
    }
  };

  // Sends partial sums, from one warp: each other split's CTA gets the sums
  // of the tokens whose logits it writes. The inbox of a split has
  // room for one message from each of the other splits, in their order.
  static __device__ void send_parts(const Parameters& p, const Place& at, const float* tile_sums,
                                    const tile::SplitInbox& inbox) {
#pragma unroll 1
    for (int i = 1; i < p.splits; ++i) {
      const int part = tile::rank_after(at.split, i, p.splits);
      const Range theirs(p, part);
      const int from = at.split - (at.split > part);
      inbox.of(p.rank(part, at.across, at.along))
          .send_by_warp(from * theirs.bytes(), tile_sums + theirs.first * kPitch, theirs.bytes());
    }
  }

  // A thread sends, adds and writes four adjacent experts for every kRows-th token.
  static constexpr int kQuads = kExperts / 4, kRows = kWarps * kWarp / kQuads;

  static __device__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  // Does the same as send_parts(), with stores by all consumer threads.
  static __device__ void store_parts(const Parameters& p, const Place& at, const float* tile_sums,
                                     const tile::SplitInbox& inbox) {
    const int expert = threadIdx.x % kQuads * 4;
#pragma unroll 1
    for (int i = 1; i < p.splits; ++i) {
      const int part = tile::rank_after(at.split, i, p.splits);
      const Range theirs(p, part);
      const int from = at.split - (at.split > part);
      const tile::SplitInbox to = inbox.of(p.rank(part, at.across, at.along));
#pragma unroll 2
      for (int row = threadIdx.x / kQuads; row < theirs.count; row += kRows)
        to.store(((from * theirs.count + row) * kPitch + expert) * static_cast<int>(sizeof(float)),
                 *reinterpret_cast<const uint4*>(tile_sums + (theirs.first + row) * kPitch + expert));
    }
  }

  static __device__ float4 bias_of(const Parameters& p, int expert) {
    float bias[4] = {};
    if (p.bias)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (expert + i < p.experts) bias[i] = tile::to_f32(static_cast<const W*>(p.bias)[expert + i]);
    return make_float4(bias[0], bias[1], bias[2], bias[3]);
  }
  static __device__ void write(const Parameters& p, int64_t token, int expert, float4 logits) {
    const float value[4] = {logits.x, logits.y, logits.z, logits.w};
    float* const y = static_cast<float*>(p.y) + token * p.y_stride + expert;
    __nv_bfloat16* const y_short = static_cast<__nv_bfloat16*>(p.y) + token * p.y_stride + expert;
    if (!p.y_f32 && p.y_wide && expert + 3 < p.experts) {
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(value[0], value[1]),
                                       __floats2bfloat162_rn(value[2], value[3])};
      *reinterpret_cast<uint2*>(y_short) = *reinterpret_cast<const uint2*>(pairs);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (expert + i >= p.experts) break;
      if (p.y_f32)
        y[i] = value[i];
      else
        y_short[i] = __float2bfloat16_rn(value[i]);
    }
  }

  // total[i] = four logits of the token i * kRows after the first: the sums of all splits, in their order, and the bias. Only
  // tokens before the first one + `rows` are read. own, theirs: this split's and the other splits' sums of the first token.
  // The loop over a split's loads has no early exit, so that the loads are issued together.
  template <int kBatch>
  static __device__ void add_parts(const Parameters& p, const Place& at, const float* own,
                                   const float* theirs, int message, int rows, float4 bias,
                                   float4 (&total)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) total[i] = float4{};
#pragma unroll 1
    for (int part = 0; part < p.splits; ++part) {
      const float* from = own;
      if (part != at.split) from = theirs, theirs += message;
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (i * kRows < rows)
          total[i] = plus(total[i], *reinterpret_cast<const float4*>(from + i * kRows * kPitch));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) total[i] = plus(total[i], bias);
  }

  // Adds up and writes the logits of this CTA's tokens.
  static __device__ void finish(const Parameters& p, const Place& at, const float* tile_sums,
                                const float* inbox, float4 bias) {
    constexpr int kBatch = 4;
    const int column = threadIdx.x % kQuads * 4, expert = at.first_expert + column;
    const Range mine(p, at.split);
    const int end = min(mine.count, p.tokens - at.first_token - mine.first), message = mine.count * kPitch;
    const int64_t first = at.first_token + mine.first;
    tile_sums += mine.first * kPitch + column;
    inbox += column;
    int row = threadIdx.x / kQuads;
    if (p.y_f32 && p.y_wide && expert + 3 < p.experts) {
      const int64_t next = kRows * p.y_stride;
      float* y = static_cast<float*>(p.y) + (first + row) * p.y_stride + expert;
#pragma unroll 1
      for (; row < end; row += kBatch * kRows) {
        float4 total[kBatch];
        add_parts(p, at, tile_sums + row * kPitch, inbox + row * kPitch, message, end - row, bias, total);
#pragma unroll
        for (int i = 0; i < kBatch; ++i, y += next)
          if (row + i * kRows < end) *reinterpret_cast<float4*>(y) = total[i];
      }
    } else {
#pragma unroll 1
      for (; row < end; row += kRows) {
        float4 total[1];
        add_parts(p, at, tile_sums + row * kPitch, inbox + row * kPitch, message, 1, bias, total);
        write(p, first + row, expert, total[0]);
      }
    }
  }

  // The whole kernel. Mainloop has
  //   static void multiply_all(Sums&, const Parameters&, const Place&, ring, full, empty)   the sums of a consumer warpgroup
  //   static int arrivals(const Parameters&)   arrivals of a warpgroup at a stage's empty barrier
  //   static int row_of(int lane)              the `row` of put_sums()
  template <class Mainloop>
  static __device__ void run(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                             uint8_t* shared) {
    const int warp = uniform(threadIdx.x / kWarp);
    uint64_t* const full = reinterpret_cast<uint64_t*>(shared + p.barriers_offset);
    uint64_t* const empty = full + p.stages;
    uint64_t* const all_here = empty + p.stages;
    const Place at(p, kExperts, kTokens);
    const bool in_cluster = p.splits > 1 || p.shared();
    tile::release_next();
    constexpr bool kByCopies = kSource == RouterSource::kCopies;
    if (warp == kWarps) {
      tile::prefetch_map(w);
      if constexpr (kByCopies) tile::prefetch_map(x);
    }
    // Initializing a barrier takes about 30 clocks, so the warps share this work.
    const uint32_t barriers = tile::shared_address(shared) + p.barriers_offset;
    const tile::Ring ring{barriers, barriers + p.stages * tile::Ring::kBytes};
#pragma unroll 1
    for (int i = warp; i < p.stages; i += kThreads / kWarp)
      ring.init_by_warp(i, 1 + (kByCopies ? 0 : kPlainWarps), kGroups * Mainloop::arrivals(p));
    if (warp == 0) tile::barrier_init_by_warp(all_here, 1);
    tile::barrier_visible();
    __syncthreads();
    // A CTA must not send to a peer CTA whose barriers are not initialized. Consumers send only at
    // the end, so they can wait for the cluster late, where they wait for the first stage anyway.
    if (in_cluster) tile::cluster_arrive();
    if (warp >= kWarps) {
      if (p.shared()) tile::cluster_wait();
      if constexpr (kByCopies)
        Base::produce(w, x, p, at, shared, ring);
      else
        Base::produce_plain(w, p, at, shared, ring);
      if (p.splits > 1) {
        if (!p.shared()) tile::cluster_wait();
        tile::cluster_arrive();
      }
    } else {
      if (in_cluster) tile::cluster_wait();
      if (threadIdx.x == 0 && p.splits > 1)
        tile::barrier_expect(all_here, (p.splits - 1) * Range(p, at.split).message_bytes(p));
      const float4 bias = bias_of(p, at.first_expert + threadIdx.x % kQuads * 4);
      Sums sums;
      Mainloop::multiply_all(sums, p, at, shared, full, empty);
      tile::sync_threads<kWarps * kWarp>(
          kRouterConsumers);  // all consumer warps have read all stages of the ring
      float* const tile_sums = reinterpret_cast<float*>(shared);
      float* const inbox = reinterpret_cast<float*>(shared + p.inbox_offset);
      put_sums(sums, tile_sums, Mainloop::row_of(threadIdx.x % kWarp));
      if (p.splits > 1) tile::fence_for_async();
      tile::sync_threads<kWarps * kWarp>(kRouterConsumers);
      tile::wait_for_previous();
      if (p.splits > 1) {
        const tile::SplitInbox mine{tile::shared_address(inbox), tile::shared_address(all_here)};
        if (p.by_stores)
          store_parts(p, at, tile_sums, mine);
        else if (warp == 0)
          send_parts(p, at, tile_sums, mine);
        mine.wait();
        tile::cluster_arrive();
      }
      finish(p, at, tile_sums, inbox, bias);
    }
    // No CTA exits before its peers have received what it sent.
    if (p.splits > 1) tile::cluster_wait();
  }
};

// True if CTAs that are not in a cluster read the same rows of x at the same time. If the hardware
// starts such CTAs in order, the rows are shared in cache; if not, the launch takes up to 1.3x as long.
inline bool reads_x_in_step(const RouterGemm::Problem& p, const RouterTilePlan& plan) {
  return plan.blocks() == 1 && p.experts > plan.tile.experts();
}

// True if a tensor map can describe the rows of x.
inline bool router_x_is_mapped(const RouterGemm::Args& a) {
  return bytes_of(a.x.dtype, a.x.stride[0]) % tile::kMapStrideBytes == 0;
}

// Launches `kernel` with `threads` threads. The plan must fit (tile_memory()).
inline Status launch_router_tile(std::string_view name,
                                 void (*kernel)(CUtensorMap, CUtensorMap, RouterTileParameters), int threads,
                                 const RouterGemm::Problem& p, const RouterGemm::Args& a,
                                 const RouterTilePlan& plan, Stream stream) {
  constexpr int kWideBytes = 16;
  // The maximum bytes of weights that are loaded before the wait for the previous launch. More would delay x, which is loaded after them.
  constexpr int kAheadBytes = 32 << 10;
  const auto ceil_div = [](int64_t n, int64_t by) { return static_cast<int>((n + by - 1) / by); };
  const int steps = ceil_div(p.hidden, kRouterStep);
  const RouterTileMemory memory = tile_memory(p, plan);
  const auto along = [&](int64_t n, int tile, int tiles) {  // rounded up to whole clusters
    return static_cast<unsigned>(ceil_div(ceil_div(n, tile), tiles) * tiles);
  };
  // A mask of `blocks` CTAs with ranks 0, apart, 2 * apart, ...
  const auto shared = [](int bytes, int blocks, int apart) {
    RouterShare share{bytes / blocks, 0};
    if (blocks > 1)
      for (int i = 0; i < blocks; ++i) share.blocks |= 1u << (i * apart);
    return share;
  };
  const int token_bytes = plan.tile.tokens * tile::kSwizzledRowBytes;
  const Launch how{
      .grid = {static_cast<unsigned>(plan.splits), along(p.experts, plan.tile.experts(), plan.beside),
               along(p.tokens, plan.tile.tokens, plan.behind)},
      .block = {static_cast<unsigned>(threads), 1, 1},
      .shared_bytes = static_cast<size_t>(memory.bytes),
      .cluster = {static_cast<unsigned>(plan.splits), static_cast<unsigned>(plan.beside),
                  static_cast<unsigned>(plan.behind)},
      .dependent = !reads_x_in_step(p, plan)};
  const RouterTileParameters parameters{
      .x = a.x.as<const __nv_bfloat16>(),
      .bias = a.bias.data,
      .y = a.y.data,
      .x_stride = a.x.stride[0],
      .y_stride = a.y.stride[0],
      .tokens = static_cast<int>(p.tokens),
      .experts = static_cast<int>(p.experts),
      .hidden = static_cast<int>(p.hidden),
      .splits = plan.splits,
      .beside = plan.beside,
      .behind = plan.behind,
      .stages = memory.stages,
      .ahead = std::clamp(kAheadBytes / memory.weight_bytes, 1, memory.stages),
      .steps_each = steps / plan.splits,
      .steps_more = steps % plan.splits,
      .tokens_each = plan.tile.tokens / plan.splits,
      .tokens_more = plan.tile.tokens % plan.splits,
      .weight_bytes = memory.weight_bytes,
      .stage_bytes = memory.stage_bytes,
      .inbox_offset = memory.inbox_offset,
      .barriers_offset = memory.barriers_offset,
      .share_w = shared(memory.weight_bytes / router_boxes(p.w), plan.behind, plan.splits * plan.beside),
      .share_x = shared(token_bytes, plan.beside, plan.splits),
      .by_stores = plan.exchange == RouterExchange::kStores,
      .y_f32 = p.y == DType::kF32,
      .y_wide = reinterpret_cast<uintptr_t>(a.y.data) % kWideBytes == 0 && a.y.stride[0] % 4 == 0};
  CUtensorMap w{}, x{};
  Status status = tile::map_rows(w, a.w, parameters.share_w.bytes / tile::kSwizzledRowBytes);
  if (status.ok() && router_x_is_mapped(a))
    status = tile::map_rows(x, a.x, parameters.share_x.bytes / tile::kSwizzledRowBytes);
  if (!status.ok()) return status;
  return launch(name, kernel, how, stream, w, x, parameters);
}

// The plan to use if no tensor map can describe the rows of x.
inline RouterTilePlan router_plain_plan(const RouterGemm::Problem& p, const RouterTile& tile) {
  constexpr int kSplits = 4;
  const int steps = static_cast<int>((p.hidden + kRouterStep - 1) / kRouterStep);
  return {.tile = tile, .splits = std::min(kSplits, steps)};
}

// The compiled kernel for one tile.
struct RouterTileInstance {
  RouterTile tile;
  void (*kernel)(CUtensorMap, CUtensorMap, RouterTileParameters);
  int threads;
};

// Launches the kernel for `wanted`, or `plain` if no tensor map can describe the rows of x.
inline Status launch_router_tile(std::string_view name, std::span<const RouterTileInstance> instances,
                                 const RouterTileInstance& plain, const RouterGemm::Problem& p,
                                 const RouterGemm::Args& a, const RouterTilePlan& wanted, Stream stream) {
  RouterTilePlan plan = wanted;
  const RouterTileInstance* use = nullptr;
  if (!router_x_is_mapped(a)) {
    plan = router_plain_plan(p, plain.tile);
    use = &plain;
  } else {
    for (const RouterTileInstance& i : instances)
      if (i.tile == plan.tile) use = &i;
  }
  if (use && tile_memory(p, plan).stages > 0)
    return launch_router_tile(name, use->kernel, use->threads, p, a, plan, stream);
  return invalid("router_gemm: no kernel for tiles of " + std::to_string(plan.tile.experts()) +
                 " experts x " + std::to_string(plan.tile.tokens) + " tokens in " +
                 std::to_string(plan.splits) + " parts, clusters of " + std::to_string(plan.beside) + " x " +
                 std::to_string(plan.behind) + " tiles");
}

}  // namespace sluice::cuda
