// Device code of the router GEMM's tile kernels: the position of a CTA in the problem, and the producer warps that fill
// its ring. W is the type of the weights. A step of f32 weights is two TMA boxes, which are loaded one after the other.
#pragma once
#include <cuda_bf16.h>

#include "backends/cuda/router/router_gemm_tile.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

constexpr int kWarp = 32, kGroupWarps = 4, kGroupThreads = kWarp * kGroupWarps;
constexpr int kGroupExperts = 64, kGroupBytes = kGroupExperts * tile::kSwizzledRowBytes;
constexpr int kPlainWarps = 4;  // producer warps, if plain loads replace TMA

// How the producer warps load x.
enum class RouterSource {
  kCopies,  // by TMA, from one warp
  kLoads,   // by plain loads, from kPlainWarps warps, because rows of x are not aligned to 16 bytes
};

// Multicast of an operand: each of the CTAs that need a tile loads `bytes` of every box and sends them to all of these CTAs.
struct RouterShare {
  int bytes;
  uint32_t blocks;  // mask of these CTAs' ranks, shifted so that bit 0 is the first; 0: no multicast
};

struct RouterTileParameters {
  const __nv_bfloat16* x;
  const void* bias;  // in the type of w
  void* y;
  int64_t x_stride, y_stride;  // elements between rows
  int tokens, experts, hidden, splits, beside, behind, stages;
  int ahead;  // stages whose weights are loaded before the wait for the previous launch
  // Steps of k per split, and tokens of the tile whose logits a split writes. The first `more` splits have one step or token more.
  int steps_each, steps_more, tokens_each, tokens_more;
  int weight_bytes, stage_bytes, inbox_offset, barriers_offset;
  RouterShare share_w, share_x;
  bool by_stores;      // RouterExchange::kStores
  bool y_f32, y_wide;  // y_wide: four adjacent logits are one aligned vector

  __device__ int rank(int part, int across, int along) const {
    return part + splits * (across + beside * along);
  }
  __device__ bool shared() const { return beside * behind > 1; }  // some operand is multicast
  // The number of CTAs that read what one CTA loads.
  __device__ int readers() const { return beside + behind - 1; }
};

// The grid: splits of k x tiles of experts x tiles of tokens.
struct RouterTilePlace {
  int split, across, along;  // position in the cluster: across tiles of experts, along tiles of tokens
  int first_expert, first_token, first_step, steps;

  __device__ RouterTilePlace(const RouterTileParameters& p, int tile_experts, int tile_tokens)
      : split(blockIdx.x),
        across(blockIdx.y & (p.beside - 1)),
        along(blockIdx.z & (p.behind - 1)),
        first_expert(blockIdx.y * tile_experts),
        first_token(blockIdx.z * tile_tokens),
        first_step(split * p.steps_each + min(split, p.steps_more)),
        steps(p.steps_each + (split < p.steps_more)) {}
};

// The copy of an operand that a CTA issues in every step.
template <bool kShared>
struct RouterCopy {
  uint32_t blocks;
  int offset, first_row;

  // first: first row of the tile. mine: index of this CTA's share. rank: rank of the CTA with share 0.
  __device__ RouterCopy(const RouterShare& share, int first, int mine, int rank)
      : blocks(share.blocks << rank),
        offset(kShared ? mine * share.bytes : 0),
        first_row(first + offset / tile::kSwizzledRowBytes) {}
  __device__ void copy(uint8_t* tile, const CUtensorMap& map, int column, uint32_t full) const {
    const uint32_t to = tile::shared_address(tile + offset);
    if constexpr (kShared)
      tile::copy_box_to(blocks, to, map, column, first_row, full);
    else
      tile::copy_box(to, map, column, first_row, full);
  }
};

// The shape of a tile, and the producer warps that load its operands.
template <int kGroups, int kTokens, RouterSource kSource, class W>
struct RouterFetch {
  static constexpr int kExperts = kGroupExperts * kGroups;
  static constexpr int kBoxes = router_boxes(sizeof(W)),
                       kBoxColumns = kRouterStep / kBoxes;  // columns of w per box
  static constexpr int kTokenBytes = kTokens * tile::kSwizzledRowBytes;
  static constexpr int kWarps = kGroups * kGroupWarps;                                       // consumer warps
  static constexpr int kProducerWarps = kSource == RouterSource::kCopies ? 1 : kPlainWarps;  // producer warps
  static constexpr int kThreads = kWarp * (kWarps + kProducerWarps);

  using Parameters = RouterTileParameters;
  using Place = RouterTilePlace;

  // The producer warp, with TMA. With multicast, every CTA expects all bytes of
  // its stage, including the bytes that other CTAs copy. There is one instance per way
  // to share operands, because a step has little time: with tiles of 64 x 64 it
  // has 200 clocks, and without branches it is about 30 warp-uniform instructions.
  template <bool kShareW, bool kShareX>
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* stages, const tile::Ring& ring) {
    const RouterCopy<kShareW> of_w(p.share_w, at.first_expert, at.along, p.rank(at.split, at.across, 0));
    const RouterCopy<kShareX> of_x(p.share_x, at.first_token, at.across, p.rank(at.split, 0, at.along));
    const int ahead = min(p.ahead, at.steps);
    int column = at.first_step * kRouterStep;
    const auto copy_w = [&](uint8_t* to, int from, uint32_t barrier) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box)
        of_w.copy(to + box * (p.weight_bytes / kBoxes), w, from + box * kBoxColumns, barrier);
    };
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) {
      const uint32_t full = ring.expect_by_warp(i, p.stage_bytes);
      copy_w(stages + i * p.stage_bytes, column + i * kRouterStep, full);
    }
    tile::wait_for_previous();
    uint8_t* const tokens = stages + p.weight_bytes;
#pragma unroll 1
    for (int i = 0; i < ahead; ++i, column += kRouterStep)
      of_x.copy(tokens + i * p.stage_bytes, x, column, ring.full_of(i));
    tile::RingPlace place;
    place.step_by(ahead, p.stages);
#pragma unroll 1
    for (int i = ahead; i < at.steps; ++i, column += kRouterStep) {
      if (i >= p.stages) ring.acquire(place);
      const int stage = place.stage * p.stage_bytes;
      const uint32_t full = ring.expect_by_warp(place.stage, p.stage_bytes);
      copy_w(stages + stage, column, full);
      of_x.copy(tokens + stage, x, column, full);
      place.step(p.stages);
    }
  }
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* stages, const tile::Ring& ring) {
    if (!p.shared())
      produce<false, false>(w, x, p, at, stages, ring);
    else if (p.beside == 1)
      produce<true, false>(w, x, p, at, stages, ring);
    else if (p.behind == 1)
      produce<false, true>(w, x, p, at, stages, ring);
    else
      produce<true, true>(w, x, p, at, stages, ring);
  }

  // The producer warps if rows of x are not aligned to 16 bytes: w by TMA as above, x by plain loads. No multicast.
  static __device__ void produce_plain(const CUtensorMap& w, const Parameters& p, const Place& at,
                                       uint8_t* stages, const tile::Ring& ring) {
    const int warp = threadIdx.x / kWarp - kWarps, lane = threadIdx.x % kWarp;
    tile::wait_for_previous();
    tile::RingPlace place;
#pragma unroll 1
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) ring.acquire(place);
      uint8_t* const stage = stages + place.stage * p.stage_bytes;
      if (warp == 0) {
        const uint32_t full = ring.expect_by_warp(place.stage, p.weight_bytes);
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
          tile::copy_box(tile::shared_address(stage + box * (p.weight_bytes / kBoxes)), w,
                         (at.first_step + i) * kRouterStep + box * kBoxColumns, at.first_expert, full);
      }
      const int column = (at.first_step + i) * kRouterStep + 2 * lane;
#pragma unroll 4
      for (int row = warp; row < kTokens; row += kPlainWarps) {
        __nv_bfloat162 pair{};
        if (at.first_token + row < p.tokens) {
          const __nv_bfloat16* const from = p.x + (at.first_token + row) * p.x_stride + column;
          if (column < p.hidden) pair.x = from[0];
          if (column + 1 < p.hidden) pair.y = from[1];
        }
        *reinterpret_cast<__nv_bfloat162*>(stage + p.weight_bytes + tile::swizzled(row, sizeof pair * lane)) =
            pair;
      }
      tile::fence_for_async();
      __syncwarp();
      if (lane == 0) tile::barrier_arrive(ring.full_of(place.stage));
      place.step(p.stages);
    }
  }
};

}  // namespace sluice::cuda
