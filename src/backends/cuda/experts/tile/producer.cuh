// Producer warps of tiles.cuh: one or three for weights, one or three for rows of x.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/tile/producer_boxes.cuh"
#include "backends/cuda/experts/tile/producer_gather.cuh"
#include "backends/cuda/experts/tile/ring.cuh"
#include "backends/cuda/experts/tile/schedule.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda {

// The TMA maps of x: one per height of a box.
template <class C>
struct ExpertMaps {
  CUtensorMap of[C::kMaps];
};

#ifdef __CUDACC__

// The half of a tile that CTA `rank` of a pair computes: half of the weights' row blocks if both CTAs use the same rows of x, else half of x.
template <class C>
__device__ __forceinline__ ExpertTile half_of(ExpertTile t, int rank) {
  if constexpr (C::kSharesX) {
    const int middle = t.first_block + ceil_div(t.end_block - t.first_block, 2);
    (rank == 0 ? t.end_block : t.first_block) = middle;
  } else {
    const int half = min(t.rows, ceil_div(t.rows, 2 * C::kStepN) * C::kStepN);
    if (rank > 0) t.row += half;
    t.rows = rank > 0 ? t.rows - half : half;
  }
  return t;
}

// The tiles of a launch that computes one GEMM, as the warps that load weights and rows of x see them.
template <class C>
struct OneProduct {
  const ExpertParameters& p;
  const TileSchedule<C>& list;

  __device__ __forceinline__ int tiles() const { return list.all; }
  __device__ __forceinline__ uint32_t* tickets() const { return p.tickets; }
  __device__ __forceinline__ int follows() const { return p.follows; }
  __device__ __forceinline__ int first_tile(const Tickets<>&) const {
    return static_cast<int>(blockIdx.x) / C::kCtas;
  }
  __device__ __forceinline__ ExpertTile at(int index) const {
    ExpertTile t = list.at(p, index);
    t.index = index;
    return t;
  }
  __device__ __forceinline__ const ExpertParameters& of(const ExpertTile&) const { return p; }
  // Does nothing: the wait at the start of the kernel covers all rows of x.
  __device__ __forceinline__ void wait_for_rows(const ExpertTile&) const {}
};

// Copies the weights of all tiles of this CTA. Warp `warp` copies every C::kWeightWarps-th row block, because one warp would
// take as long to issue a tile's copies as the tensor cores take to multiply the tile. If a pair shares weights, each CTA copies every second row
// block to both. Warp 0 (in a pair, only warp 0 of the first CTA) finds the tiles and writes them to the ring for the other warps.
template <class C, class Work>
__device__ __forceinline__ void fetch_weights(const Work& work, TileRing<C> ring, int warp) {
  constexpr int kCopiers = C::kSharesWeights ? 2 : C::kWeightWarps;
  constexpr int kOwnMax = (C::kRowBlocks + kCopiers - 1) / kCopiers;
  const int copier = C::kSharesWeights ? static_cast<int>(ring.rank) : warp;
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const Tickets<C::kBothProducts> tickets{work.tickets(), work.tiles()};
  const bool finds = warp == 0 && ring.rank == 0;
  int count = 0, index = work.first_tile(tickets);
#pragma unroll 1
  while (true) {
    ExpertTile t{.end_block = 0};
    if (finds) {
      if (index < tickets.all) t = work.at(index);
      if constexpr (C::kPair) {
        ring.publish_to_peer(count, half_of<C>(t, 1));
        t = half_of<C>(t, 0);
      }
      ring.publish(count, t);
    } else {
      if constexpr (C::kPair) ring.expect_tile(count);
      t = ring.wait_tile(count);
    }
    if (ring.ends(t)) break;
    uint32_t ticket = 0;
    const auto& p = work.of(t);
    // Takes the next ticket (an atomic add) a few stages before the end
    // of the tile, so that it has arrived when the next tile is chosen.
    const int take_at = max(0, ceil_div(p.k_blocks, C::kSteps) - 3) * C::kSteps;
    const int blocks = t.end_block - t.first_block;
    const int own = (blocks - copier + kCopiers - 1) / kCopiers;
    const int64_t first = static_cast<int64_t>(t.first_block + copier) * p.k_blocks;
    const uint8_t* weights = p.w + t.expert * p.w_bytes + first * C::kBlockBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + first * C::kScaleBytes;
    const int64_t next =
        static_cast<int64_t>(kCopiers) * p.k_blocks;  // from a row block of this warp to its next one
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      ring.wait_empty();
      tile::
          fence_for_async();  // orders writes by an earlier tile's epilogue to this stage before the bulk copies
      if (finds && k == take_at) {
        if (!work.follows()) tile::wait_for_previous();
        ticket = tickets.take();
      }
      const uint32_t code_bytes = steps * C::kBlockBytes, scale_bytes = steps * C::kScaleBytes,
                     barrier = ring.expect((C::kSharesWeights ? blocks : own) * (code_bytes + scale_bytes));
      const uint32_t codes_to = ring.stage() + C::kWeights + copier * C::kSteps * C::kBlockBytes;
      const uint32_t scales_to = ring.stage() + C::kScales + copier * C::kSteps * C::kScaleBytes;
#pragma unroll
      for (int i = 0; i < kOwnMax; ++i) {
        if (i >= own) break;
        const uint32_t to = codes_to + i * kCopiers * C::kSteps * C::kBlockBytes;
        const uint8_t* from = weights + i * next * C::kBlockBytes;
        if constexpr (C::kScaleBytes > 0) {
          tile::copy_bulk_two(to, from, code_bytes, scales_to + i * kCopiers * C::kSteps * C::kScaleBytes,
                              scales + i * next * C::kScaleBytes, scale_bytes, barrier);
        } else if constexpr (C::kSharesWeights) {
          tile::copy_bulk_to(3, to, from, code_bytes, barrier);
        } else {
          tile::copy_bulk(to, from, code_bytes, barrier);
        }
      }
      weights += code_bytes, scales += scale_bytes;
      ring.place.step(stages);
    }
    if (finds) index = tickets.tile_of(ticket);
    // A pair takes tiles as one CTA, so only the first gridDim.x / 2 tiles are assigned without a ticket.
    if constexpr (C::kPair) index -= static_cast<int>(gridDim.x / 2);
    ++count;
  }
}

// Copies the rows of x of all tiles of this CTA, 16 bytes per thread, with kXWarps warps.
template <class C, class Work>
__device__ __forceinline__ void fetch_rows(const Work& work, TileRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<C::kTileN, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.wait_tile(count);
    if (ring.ends(t)) break;
    const auto& p = work.of(t);
    work.wait_for_rows(t);
    rows.begin(p, t);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      ring.wait_empty();
      rows.template copy<C::kRowsOfStage>(p, ring.stage(), k / C::kBlocksOfRow);
      arrive_with_x(p, ring.full());
      ring.place.step(stages);
    }
  }
}

// One warp copies rows of x as TMA boxes. The rows must be in y's order; gathered rows are, once the
// gather has written them. If a pair shares rows of x, each CTA copies half of them to both.
template <class C>
__device__ __forceinline__ void fetch_boxes(const ExpertParameters& p, const ExpertMaps<C>& x,
                                            const PairGather& g, TileRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  int waves = 0;  // waves (producer_gather.cuh) that this CTA has started
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.wait_tile(count);
    if (ring.ends(t)) break;
    PairArrived arrived;
    int segment = 0, segment_at = 0;
    if constexpr (C::kGathers) {
      arrived.read(p, g, t.expert);
      const int more = t.index / static_cast<int>(gridDim.x / 2) + 1 - waves;
      begin_waves(ring.base + ring.at.waves_begun, more);
      waves += more;
    }
    const int height = max(0, ceil_div(t.rows - C::kNMin, C::kStepN));
    const int rows = C::kNMin + height * C::kStepN,
              half = C::kSharesX ? static_cast<int>(ring.rank) * (rows / 2) : 0;
    const int bytes = rows * tile::kSwizzledRowBytes;
    const CUtensorMap& map = x.of[height];
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kRowsOfStage, ceil_div(p.k_blocks - k, C::kBlocksOfRow));
      if constexpr (C::kGathers)
        while (segment_at < k + steps) arrived.wait(segment++), segment_at += g.segment_blocks;
      ring.wait_empty();
      const uint32_t full = ring.expect(static_cast<uint32_t>(steps * bytes)),
                     to = ring.stage() + static_cast<uint32_t>(half * tile::kSwizzledRowBytes);
#pragma unroll
      for (int s = 0; s < C::kRowsOfStage; ++s) {
        if (s >= steps) break;
        const int column = (k / C::kBlocksOfRow + s) * static_cast<int>(kFragmentWidth);
        if constexpr (C::kSharesX) {
          tile::copy_box_to(3, to + s * C::kXBytes, map, column, t.row + half, full);
        } else {
          tile::copy_box(to + s * C::kXBytes, map, column, t.row, full);
        }
      }
      ring.place.step(stages);
    }
  }
  if constexpr (C::kGathers) {
    begin_waves(ring.base + ring.at.waves_begun, INT32_MAX - waves);
    finish_gather(p, g);
  }
}

// Copies rows of x directly from their tokens, one TMA box per row, with kXWarps warps in each CTA of a pair.
template <class C>
__device__ __forceinline__ void fetch_token_boxes(const ExpertParameters& p, const CUtensorMap& of_x,
                                                  TileRing<C> ring, int warp) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const CUtensorMap& x = map_at_hand(of_x);
#pragma unroll 1
  for (int count = 0;; ++count) {
    const ExpertTile t = ring.wait_tile(count);
    if (ring.ends(t)) break;
    TokenBoxes<C::kTileN> boxes;
    boxes.find(p, t, ring.rank, warp);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kRowsOfStage, ceil_div(p.k_blocks - k, C::kBlocksOfRow));
      ring.wait_empty();
      const uint32_t full = ring.full(), to = ring.stage();
      if (warp == 0) ring.expect(steps * boxes.bytes());
#pragma unroll 1
      for (int s = 0; s < steps; ++s)
        boxes.copy(x, to + s * C::kXBytes, (k / C::kBlocksOfRow + s) * static_cast<int>(kFragmentWidth), full,
                   warp);
      ring.place.step(stages);
    }
  }
}

#endif

}  // namespace sluice::cuda
