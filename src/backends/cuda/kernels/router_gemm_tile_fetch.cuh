// Device code of router_gemm_tile_sm90.cu alone: where a block is, and the warps that fill its ring.
#pragma once
#include <cuda_bf16.h>

#include "backends/cuda/kernels/router_gemm_tile.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

constexpr int kWarp = 32, kGroupWarps = 4, kGroupThreads = kWarp * kGroupWarps;
constexpr int kGroupExperts = 64, kGroupBytes = kGroupExperts * tile::kSwizzledRowBytes;
constexpr int kPlainWarps = 4;  // that fetch x where the copy engine cannot

// Who fetches x.
enum class RouterSource {
  kCopies,  // the copy engine
  kLoads,   // four warps, where its rows do not begin at multiples of 16 bytes
};

// How an operand is fetched: each of the blocks that need a tile of it copies `bytes`, for all of them.
struct RouterShare {
  int bytes;
  uint32_t blocks;  // a bit for the rank of each, from the first one on; 0: everybody fetches for itself
};

struct RouterTileParameters {
  const __nv_bfloat16 *x, *bias;
  void* y;
  int64_t x_stride, y_stride;  // elements
  int tokens, experts, hidden, splits, beside, behind, stages;
  int ahead;  // stages whose weights are asked for before the kernel in front has ended
  // Steps of the sum for each part, and tokens of the tile that each part finishes; the first `more` take one more.
  int steps_each, steps_more, tokens_each, tokens_more;
  int weight_bytes, stage_bytes, inbox_offset, barriers_offset;
  RouterShare share_w, share_x;
  bool by_stores;      // RouterExchange::kStores
  bool y_f32, y_wide;  // four neighbouring logits lie in one aligned piece

  __device__ int rank(int part, int across, int along) const {
    return part + splits * (across + beside * along);
  }
  __device__ bool shared() const { return beside * behind > 1; }  // some blocks fetch together
  // Blocks that read what one of them fetches.
  __device__ int readers() const { return beside + behind - 1; }
};

// A grid is parts of the sum x tiles of experts x tiles of tokens.
struct RouterTilePlace {
  int split, across, along;  // in the cluster
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

// What a block copies of an operand in each step.
template <bool kShared>
struct RouterCopy {
  uint32_t blocks;
  int offset, first_row;

  // `first`: the row at which the tile begins; `mine`: which of the shares; `rank` of the block that has the first share.
  __device__ RouterCopy(const RouterShare& share, int first, int mine, int rank)
      : blocks(share.blocks << rank),
        offset(kShared ? mine * share.bytes : 0),
        first_row(first + offset / tile::kSwizzledRowBytes) {}
  __device__ void ask(uint8_t* tile, const CUtensorMap& map, int column, uint64_t* full) const {
    if constexpr (kShared)
      tile::copy_box_to(blocks, tile + offset, map, column, first_row, full);
    else
      tile::copy_box(tile, map, column, first_row, full);
  }
};

// A tile's shape and the warps that fetch its operands.
template <int kGroups, int kTokens, RouterSource kSource>
struct RouterFetch {
  static constexpr int kExperts = kGroupExperts * kGroups;
  static constexpr int kTokenBytes = kTokens * tile::kSwizzledRowBytes;
  static constexpr int kWarps = kGroups * kGroupWarps;                                  // that multiply
  static constexpr int kFetchers = kSource == RouterSource::kCopies ? 1 : kPlainWarps;  // warps
  static constexpr int kThreads = kWarp * (kWarps + kFetchers);

  using Parameters = RouterTileParameters;
  using Place = RouterTilePlace;

  // The warp that fills the ring through the copy engine. Every block of those that fetch together announces all bytes of
  // its stage, whoever sends them. One function for each way to share: without branches a step is some 30 instructions, all
  // of them once for the warp, and with tiles of 64 x 64 it has 200 clocks.
  template <bool kShareW, bool kShareX>
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const RouterCopy<kShareW> of_w(p.share_w, at.first_expert, at.along, p.rank(at.split, at.across, 0));
    const RouterCopy<kShareX> of_x(p.share_x, at.first_token, at.across, p.rank(at.split, 0, at.along));
    const int ahead = min(p.ahead, at.steps);
    int column = at.first_step * kRouterStep;
#pragma unroll 1
    for (int i = 0; i < ahead; ++i) {
      tile::barrier_expect_by_warp(full + i, p.stage_bytes);
      of_w.ask(ring + i * p.stage_bytes, w, column + i * kRouterStep, full + i);
    }
    tile::wait_for_previous();
    uint8_t* const tokens = ring + p.weight_bytes;
#pragma unroll 1
    for (int i = 0; i < ahead; ++i, column += kRouterStep)
      of_x.ask(tokens + i * p.stage_bytes, x, column, full + i);
    tile::RingPlace place;
    place.step_by(ahead, p.stages);
#pragma unroll 1
    for (int i = ahead; i < at.steps; ++i, column += kRouterStep) {
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      const int stage = place.stage * p.stage_bytes;
      tile::barrier_expect_by_warp(full + place.stage, p.stage_bytes);
      of_w.ask(ring + stage, w, column, full + place.stage);
      of_x.ask(tokens + stage, x, column, full + place.stage);
      place.step(p.stages);
    }
  }
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* ring, uint64_t* full, uint64_t* empty) {
    if (!p.shared())
      produce<false, false>(w, x, p, at, ring, full, empty);
    else if (p.beside == 1)
      produce<true, false>(w, x, p, at, ring, full, empty);
    else if (p.behind == 1)
      produce<false, true>(w, x, p, at, ring, full, empty);
    else
      produce<true, true>(w, x, p, at, ring, full, empty);
  }

  // The warps that fill the ring where rows of x do not begin at multiples of 16 bytes: w as above, x by plain loads. No
  // blocks fetch together.
  static __device__ void produce_plain(const CUtensorMap& w, const Parameters& p, const Place& at,
                                       uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const int warp = threadIdx.x / kWarp - kWarps, lane = threadIdx.x % kWarp;
    tile::wait_for_previous();
    tile::RingPlace place;
#pragma unroll 1
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      uint8_t* const stage = ring + place.stage * p.stage_bytes;
      if (warp == 0) {
        tile::barrier_expect_by_warp(full + place.stage, p.weight_bytes);
        tile::copy_box(stage, w, (at.first_step + i) * kRouterStep, at.first_expert, full + place.stage);
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
      if (lane == 0) tile::barrier_arrive(full + place.stage);
      place.step(p.stages);
    }
  }
};

}  // namespace sluice::cuda
