// The producer warps of a CTA pair (pairs.cuh): one for weights and one for x, or three for x where rows are
// copied one by one.
#pragma once
#include "backends/cuda/experts/pairs_schedule.cuh"
#include "backends/cuda/experts/producer_boxes.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

template <class C>
__device__ __forceinline__ void fetch_pair_weights(const ExpertParameters& p, const PairSchedule<C>& list,
                                                   PairRing<C> ring) {
  constexpr int kEach = C::kSharesX ? C::kRowBlocks : C::kRowBlocks / 2;  // bulk copies a stage
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int rank = static_cast<int>(ring.rank), all = list.tiles();
  int count = 0;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all;
       index += static_cast<int>(gridDim.x / 2), ++count) {
    const ExpertTile t = list.at(p, ring.rank, index);
    const uint8_t* from[kEach];
    bool there[kEach];
    int own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int block = C::kSharesX ? first_of_group<C>(t.first_block, i / C::kBlocks, rank) + i % C::kBlocks
                                    : t.first_block + rank * kEach + i;
      from[i] = p.w + t.expert * p.w_bytes + static_cast<int64_t>(block) * p.k_blocks * C::kBlockBytes;
      there[i] = block < p.row_blocks;
      own += there[i];
    }
    const int blocks = C::kSharesX ? own : min(C::kRowBlocks, p.row_blocks - t.first_block);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      if (k == 0) {
        if (threadIdx.x % 32 == 0)
          tile::store_shared(ring.tile_at(count), make_uint4(t.expert, t.first_block, t.row, t.rows));
        __syncwarp();
      }
      const uint32_t barrier = ring.full();
      const uint32_t to = ring.stage() + C::kXBytes + (C::kSharesX ? 0 : rank * kEach * C::kBlockBytes);
      tile::barrier_expect_by_warp(barrier, blocks * C::kBlockBytes);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (!there[i]) break;
        if constexpr (C::kSharesX) {
          tile::copy_bulk(to + i * C::kBlockBytes, from[i], C::kBlockBytes, barrier);
        } else {
          tile::copy_bulk_to(3, to + i * C::kBlockBytes, from[i], C::kBlockBytes, barrier);
        }
        from[i] += C::kBlockBytes;
      }
      ring.place.step(stages);
    }
  }
}

template <class C>
__device__ __forceinline__ void fetch_pair_boxes(const ExpertParameters& p, const PairGather& g,
                                                 const ExpertMaps<C>& x, const PairSchedule<C>& list,
                                                 PairRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(), apart = static_cast<int>(gridDim.x / 2);
  int index = static_cast<int>(blockIdx.x / 2);
  ExpertTile next{};
  PairArrived arrived;
  const auto find_next = [&] {
    if (index >= all) return;
    next = list.at(p, ring.rank, index);
    if constexpr (C::kGathers) arrived.read(p, g, next.expert);
  };
  find_next();
#pragma unroll 1
  while (index < all) {
    const ExpertTile t = next;
    const int height = max(0, ceil_div(t.rows - C::kLeastN, C::kStepN));
    const int rows = C::kLeastN + height * C::kStepN, half = C::kSharesX ? ring.rank * (rows / 2) : 0;
    const CUtensorMap& map = x.of[height];
    if constexpr (C::kGathers) begin_waves(ring.base + ring.at.waves_begun, 1);
    index += apart;
    int segment = 0, segment_at = 0;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      if constexpr (C::kGathers)
        if (k == segment_at) arrived.wait(segment++), segment_at += g.segment_blocks;
      if (k == p.k_blocks - 1) find_next();  // early, so that the first stage waits for nothing
      ring.wait_empty();
      const uint32_t full = ring.full();
      const uint32_t to = ring.stage() + half * tile::kSwizzledRowBytes;
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(rows * tile::kSwizzledRowBytes));
      const int column = k * static_cast<int>(kFragmentWidth);
      if constexpr (C::kSharesX) {
        tile::copy_box_to(3, to, map, column, t.row + half, full);
      } else {
        tile::copy_box(to, map, column, t.row, full);
      }
      ring.place.step(stages);
    }
  }
  if constexpr (C::kGathers) finish_gather(p, g);
}

// Rows of x from their tokens, one TMA box each: kXWarps warps.
template <class C>
__device__ __forceinline__ void fetch_pair_tokens(const ExpertParameters& p, const CUtensorMap& x,
                                                  const PairSchedule<C>& list, PairRing<C> ring, int warp) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(), apart = static_cast<int>(gridDim.x / 2);
  int index = static_cast<int>(blockIdx.x / 2);
  TokenBoxes<C::kTileN> next;
  if (index < all) next.find(p, list.at(p, ring.rank, index), ring.rank, warp);
#pragma unroll 1
  while (index < all) {
    const TokenBoxes<C::kTileN> now = next;
    index += apart;
    if (index < all)
      next.find(p, list.at(p, ring.rank, index), ring.rank, warp);  // early: nobody waits for it
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      const uint32_t full = ring.full();
      if (warp == 0) tile::barrier_expect_by_warp(full, now.bytes());
      now.copy(x, ring.stage(), k * static_cast<int>(kFragmentWidth), full, warp);
      ring.place.step(stages);
    }
  }
}

// Rows of x at any address, 16 bytes a thread: kXWarps warps.
template <class C>
__device__ __forceinline__ void fetch_pair_rows(const ExpertParameters& p, const PairSchedule<C>& list,
                                                PairRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<C::kTileN, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
  const int all = list.tiles();
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all; index += static_cast<int>(gridDim.x / 2)) {
    rows.begin(p, list.at(p, ring.rank, index));
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      rows.template copy<1>(p, ring.stage(), k);
      arrive_with_x(p, ring.full());
      ring.place.step(stages);
    }
  }
}

#endif

}  // namespace sluice::cuda
