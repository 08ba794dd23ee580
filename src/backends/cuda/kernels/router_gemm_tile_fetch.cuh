// Device code of router_gemm_tile_sm90.cu alone: where a block is, and the warps that fill its rings.
#pragma once
#include <cuda_bf16.h>

#include "backends/cuda/kernels/router_gemm_tile.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

constexpr int kWarp = 32, kGroupWarps = 4, kGroupThreads = kWarp * kGroupWarps;
constexpr int kGroupExperts = 64, kGroupBytes = kGroupExperts * tile::kSwizzledRowBytes;
// Weights that are asked for before the kernel in front has ended. More would delay x, which queues behind them.
constexpr int kAheadBytes = 32 << 10;
constexpr int kPlainWarps = 4;  // that fetch x where the copy engine cannot

struct RouterTileParameters {
  const __nv_bfloat16 *x, *bias;
  void* y;
  int64_t x_stride, y_stride;  // elements
  int tokens, experts, hidden, splits, stages, runs;
  // Steps of the sum for each part, and tokens of the tile that each part finishes; the first `more` take one more.
  int steps_each, steps_more, tokens_each, tokens_more;
  int inbox_offset, barriers_offset;
  bool by_stores;      // RouterExchange::kStores
  bool y_f32, y_wide;  // four neighbouring logits lie in one aligned piece
};

// A grid is parts of the sum x tiles of experts x tiles of tokens; a cluster is all parts of one tile.
struct RouterTilePlace {
  int split, first_expert, first_token, first_step, steps;

  __device__ RouterTilePlace(const RouterTileParameters& p, int tile_experts, int tile_tokens)
      : split(blockIdx.x),
        first_expert(blockIdx.y * tile_experts),
        first_token(blockIdx.z * tile_tokens),
        first_step(split * p.steps_each + min(split, p.steps_more)),
        steps(p.steps_each + (split < p.steps_more)) {}
};

// A tile's shape and the warps that fetch its operands. kRun: as in RouterTile, or 0 where the copy engine cannot fetch x.
template <int kGroups, int kTokens, int kRun>
struct RouterFetch {
  static constexpr int kExperts = kGroupExperts * kGroups;
  static constexpr int kWeightBytes = kExperts * tile::kSwizzledRowBytes;
  static constexpr int kTokenBytes = kTokens * tile::kSwizzledRowBytes;
  // Where x comes in runs it has a ring of its own.
  static constexpr int kStageBytes = kWeightBytes + (kRun > 1 ? 0 : kTokenBytes),
                       kRunBytes = kRun * kTokenBytes;
  static constexpr int kWarps = kGroups * kGroupWarps;                           // that multiply
  static constexpr int kFetchers = kRun == 0 ? kPlainWarps : kRun == 1 ? 1 : 2;  // warps
  static constexpr int kThreads = kWarp * (kWarps + kFetchers);

  using Parameters = RouterTileParameters;
  using Place = RouterTilePlace;

  // The warp that fills the ring through the copy engine.
  static __device__ void produce(const CUtensorMap& w, const CUtensorMap& x, const Parameters& p,
                                 const Place& at, uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const int ahead = max(1, min(kAheadBytes / kWeightBytes, min(p.stages, at.steps)));
    tile::RingPlace of_w, of_x;
    int asked_x = 0;
#pragma unroll 1
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) tile::barrier_wait(empty + of_w.stage, of_w.parity ^ 1);
      tile::barrier_expect_by_warp(full + of_w.stage, kStageBytes);
      tile::copy_box(ring + of_w.stage * kStageBytes, w, (at.first_step + i) * kRouterStep, at.first_expert,
                     full + of_w.stage);
      of_w.step(p.stages);
      if (i + 1 < ahead) continue;
      if (asked_x == 0) tile::wait_for_previous();
#pragma unroll 1
      for (; asked_x <= i; ++asked_x) {
        tile::copy_box(ring + of_x.stage * kStageBytes + kWeightBytes, x,
                       (at.first_step + asked_x) * kRouterStep, at.first_token, full + of_x.stage);
        of_x.step(p.stages);
      }
    }
  }

  // The warps that fill the ring where rows of x do not begin at multiples of 16 bytes: w as above, x by plain loads.
  static __device__ void produce_plain(const CUtensorMap& w, const Parameters& p, const Place& at,
                                       uint8_t* ring, uint64_t* full, uint64_t* empty) {
    const int warp = threadIdx.x / kWarp - kWarps, lane = threadIdx.x % kWarp;
    tile::wait_for_previous();
    tile::RingPlace place;
#pragma unroll 1
    for (int i = 0; i < at.steps; ++i) {
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      uint8_t* const stage = ring + place.stage * kStageBytes;
      if (warp == 0) {
        tile::barrier_expect_by_warp(full + place.stage, kWeightBytes);
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
        *reinterpret_cast<__nv_bfloat162*>(stage + kWeightBytes + tile::swizzled(row, sizeof pair * lane)) =
            pair;
      }
      tile::fence_for_async();
      __syncwarp();
      if (lane == 0) tile::barrier_arrive(full + place.stage);
      place.step(p.stages);
    }
  }

  // Where x comes in runs, one warp fetches w and one x, and neither waits for the other's ring. The first asks for no
  // more than a few weights before the kernel in front has ended, so that x does not queue behind them.
  static __device__ void produce_weights(const CUtensorMap& w, const Parameters& p, const Place& at,
                                         uint8_t* ring, uint64_t* full, uint64_t* empty) {
    tile::RingPlace place;
#pragma unroll 1
    for (int i = 0; i < at.steps; ++i) {
      if (i == kAheadBytes / kWeightBytes) tile::wait_for_previous();
      if (i >= p.stages) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      tile::barrier_expect_by_warp(full + place.stage, kWeightBytes);
      tile::copy_box(ring + place.stage * kWeightBytes, w, (at.first_step + i) * kRouterStep, at.first_expert,
                     full + place.stage);
      place.step(p.stages);
    }
  }
  static __device__ void produce_runs(const CUtensorMap& x, const Parameters& p, const Place& at,
                                      uint8_t* ring, uint64_t* full, uint64_t* empty) {
    tile::wait_for_previous();
    tile::RingPlace place;
#pragma unroll 1
    for (int i = 0; i < at.steps; i += kRun) {
      if (i >= p.runs * kRun) tile::barrier_wait(empty + place.stage, place.parity ^ 1);
      tile::barrier_expect_by_warp(full + place.stage, kRunBytes);
      tile::copy_runs(ring + place.stage * kRunBytes, x, at.first_step + i,
                      at.first_token / tile::kMapGroupRows, full + place.stage);
      place.step(p.runs);
    }
  }
};

}  // namespace sluice::cuda
