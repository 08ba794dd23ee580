// The warps that fill the stages of expert_gemm_tile.cuh: weights by one warp or three, rows of x by one or three.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/producer_boxes.cuh"
#include "backends/cuda/experts/producer_gather.cuh"
#include "backends/cuda/experts/ring.cuh"
#include "backends/cuda/experts/schedule.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda {

// x, by the heights of its boxes.
template <class C>
struct ExpertMaps {
  CUtensorMap of[C::kMaps];
};

#ifdef __CUDACC__

// What a block of a pair has of a tile.
__device__ __forceinline__ ExpertTile half_of(ExpertTile t, int rank) {
  const int middle = t.first_block + ceil_div(t.end_block - t.first_block, 2);
  (rank == 0 ? t.end_block : t.first_block) = middle;
  return t;
}

// Fetches weights of all tiles of this block: every C::kParts-th row block from `part` on, by one warp. A warp alone would
// take as long for the copies of a tile as the tensor cores for its sums. The first part, that of a pair's first block, finds
// the tiles and tells the others.
template <class C>
__device__ __forceinline__ void fetch_weights(const ExpertParameters& p, const TileSchedule<C>& list,
                                              TileRing<C> ring, int part) {
  constexpr int kOwnMost = (C::kRowBlocks + C::kParts - 1) / C::kParts;
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const Tickets tickets{p.tickets, list.all};
  // Asked for a little before the tile's last stage, so that nobody waits for the answer.
  const int ask_at = max(0, ceil_div(p.k_blocks, C::kSteps) - 3) * C::kSteps;
  const bool finds = part == 0 && ring.rank == 0;
  int count = 0, index = static_cast<int>(blockIdx.x) / C::kBlocksOfTile;
#pragma unroll 1
  while (true) {
    ExpertTile t{.end_block = 0};
    if (finds) {
      if (index < tickets.all) t = list.at(p, index);
      t.index = index;
      if constexpr (C::kPair) {
        ring.publish_to_peer(count, half_of(t, 1));
        t = half_of(t, 0);
      }
      ring.publish(count, t);
    } else {
      if constexpr (C::kPair) ring.expect_published(count);
      t = ring.published(count);
    }
    if (t.rows == 0) break;
    uint32_t answer = 0;
    const int blocks = t.end_block - t.first_block;
    const int own = (blocks - part + C::kParts - 1) / C::kParts;
    const int64_t first = static_cast<int64_t>(t.first_block + part) * p.k_blocks;
    const uint8_t* weights = p.w + t.expert * p.w_bytes + first * C::kBlockBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + first * C::kScaleBytes;
    const int64_t next = static_cast<int64_t>(C::kParts) * p.k_blocks;  // own block
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      ring.wait_empty();
      tile::fence_for_async();  // where these weights go, ends of tiles have written
      if (finds && k == ask_at) {
        if (!p.follows) tile::wait_for_previous();
        answer = tickets.ask();
      }
      const uint32_t barrier = ring.full(ring.place.stage), code_bytes = steps * C::kBlockBytes,
                     scale_bytes = steps * C::kScaleBytes;
      tile::barrier_expect_by_warp(barrier, own * (code_bytes + scale_bytes));
      const uint32_t codes_to = ring.stage() + C::kWeights + part * C::kSteps * C::kBlockBytes;
      const uint32_t scales_to = ring.stage() + C::kScales + part * C::kSteps * C::kScaleBytes;
#pragma unroll
      for (int i = 0; i < kOwnMost; ++i) {
        if (i >= own) break;
        const uint32_t to = codes_to + i * C::kParts * C::kSteps * C::kBlockBytes;
        const uint8_t* from = weights + i * next * C::kBlockBytes;
        if constexpr (C::kScaleBytes > 0) {
          tile::copy_bulk_two(to, from, code_bytes, scales_to + i * C::kParts * C::kSteps * C::kScaleBytes,
                              scales + i * next * C::kScaleBytes, scale_bytes, barrier);
        } else {
          tile::copy_bulk(to, from, code_bytes, barrier);
        }
      }
      weights += code_bytes, scales += scale_bytes;
      ring.place.step(stages);
    }
    if (finds) index = tickets.given(answer);
    if constexpr (C::kPair) index -= static_cast<int>(gridDim.x / 2);  // blocks that had none of their own
    ++count;
  }
}

// Fetches the rows of x of all tiles of this block: kXWarps warps.
template <class C>
__device__ __forceinline__ void fetch_rows(const ExpertParameters& p, TileRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<C::kMost, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.published(count);
    if (t.rows == 0) break;
    rows.begin(p, t);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      ring.wait_empty();
      rows.template copy<C::kSteps>(p, ring.stage(), k);
      arrive_with_x(p, ring.full(ring.place.stage));
      ring.place.step(stages);
    }
  }
}

// The same where they lie in order, or will: one warp, and the copy engine. Of a pair each block fetches a half, into both.
template <class C>
__device__ __forceinline__ void fetch_boxes(const ExpertParameters& p, const ExpertMaps<C>& x,
                                            const PairGather& g, TileRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  int turns = 0;  // begun
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.published(count);
    if (t.rows == 0) break;
    PairArrived arrived;
    int chunk = 0, chunk_at = 0;
    if constexpr (C::kGathers) {
      arrived.ask(p, g, t.expert);
      const int more = t.index / static_cast<int>(gridDim.x / 2) + 1 - turns;
      begin_turns(ring.base + ring.at.begun, more);
      turns += more;
    }
    const int height = max(0, ceil_div(t.rows - C::kLeast, C::kFiner));
    const int rows = C::kLeast + height * C::kFiner,
              half = C::kPair ? static_cast<int>(ring.rank) * (rows / 2) : 0;
    const int bytes = rows * tile::kSwizzledRowBytes;
    const CUtensorMap& map = x.of[height];
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      if constexpr (C::kGathers)
        while (chunk_at < k + steps) arrived.wait(chunk++), chunk_at += g.chunk_blocks;
      ring.wait_empty();
      const uint32_t full = ring.full(ring.place.stage),
                     to = ring.stage() + static_cast<uint32_t>(half * tile::kSwizzledRowBytes);
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(steps * bytes));
#pragma unroll
      for (int s = 0; s < C::kSteps; ++s) {
        if (s >= steps) break;
        const int column = (k + s) * static_cast<int>(kFragmentWidth);
        if constexpr (C::kPair) {
          tile::copy_box_to(3, to + s * C::kXBytes, map, column, t.row + half, full);
        } else {
          tile::copy_box(to + s * C::kXBytes, map, column, t.row, full);
        }
      }
      ring.place.step(stages);
    }
  }
  if constexpr (C::kGathers) {
    begin_turns(ring.base + ring.at.begun, INT32_MAX - turns);
    leave_gathered(p, g);
  }
}

// The same from where their tokens are, by kXWarps warps of each block of a pair.
template <class C>
__device__ __forceinline__ void fetch_token_boxes(const ExpertParameters& p, const CUtensorMap& of_x,
                                                  TileRing<C> ring, int part) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const CUtensorMap& x = map_at_hand(of_x);
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.published(count);
    if (t.rows == 0) break;
    TokenBoxes<C::kMost> boxes;
    boxes.find(p, t, ring.rank, part);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      ring.wait_empty();
      const uint32_t full = ring.full(ring.place.stage), to = ring.stage();
      if (part == 0) tile::barrier_expect_by_warp(full, steps * boxes.bytes());
#pragma unroll 1
      for (int s = 0; s < steps; ++s)
        boxes.ask(x, to + s * C::kXBytes, (k + s) * static_cast<int>(kFragmentWidth), full, part);
      ring.place.step(stages);
    }
  }
}

#endif

}  // namespace sluice::cuda
