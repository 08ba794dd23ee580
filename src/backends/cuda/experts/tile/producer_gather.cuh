// CTA pairs (tiles.cuh) gather rows of tokens into the row order of an expert GEMM while they multiply. Two
// warps of each CTA move rows by bulk copies to shared memory and from there to a workspace. Whole TMA boxes
// are loaded from the workspace, as if an earlier kernel had gathered the rows. The tensor cores are the
// bottleneck, so memory bandwidth is left for this.
//
// Work is divided into waves: the experts whose first tile is among the grid's first tiles, among its second
// tiles, and so on. A wave is divided into segments of k, so that the first tiles wait for little. The items
// have a fixed order, which assigns each item to a warp, so all CTAs must run at once (Launch::cooperative).
// A CTA copies a wave only when it loads tiles a few waves before it, so that the rows are still in L2 when
// they are needed.
//
// There is no deadlock. A warp publishes what it has written before it waits for its CTA to start a wave. A tile waits for rows of its own
// wave, and these rows wait for the start of an earlier tile, so some warp can always proceed. This also holds if tiles are taken by
// tickets, because the wave of a tile follows from its position in the list: among all waiting tiles, the rows of the first tile wait
// for no tile.
#pragma once
#include <algorithm>
#include <cmath>

#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/queue.h"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"

namespace sluice::cuda {

// The gather as a kernel's parameter. kWarps: gather warps per CTA.
struct PairGather {
  static constexpr int kWarps = 2;
  static constexpr int kSegmentsMost = 32;  // one lane each

  const uint4* from = nullptr;           // rows of tokens
  uint4* to = nullptr;                   // rows in order, `chunks` each
  int64_t from_stride = 0;               // in chunks
  int chunks = 0;                        // 16-byte chunks per row
  int segments = 0, segment_blocks = 0;  // segments of k; k blocks per segment
  int ahead = 1;                         // waves that a CTA may copy beyond the tile that it loads
  // Zero before and after the launch: CTAs that need no more rows; rows that have arrived, [experts, segments].
  uint32_t *ctas_done = nullptr, *rows_arrived = nullptr;
};

// How k is divided into segments of equally many k blocks; the last may be shorter. C::kGatherBlocks: the
// maximum number of k blocks per segment.
template <class C>
constexpr int pair_segment_blocks(int k_blocks) {
  const int segments = (k_blocks + C::kGatherBlocks - 1) / C::kGatherBlocks;
  return (k_blocks + segments - 1) / segments;
}
template <class C>
constexpr int pair_segments(int k_blocks) {
  const int each = pair_segment_blocks<C>(k_blocks);
  return (k_blocks + each - 1) / each;
}

// The words before these counters are the tickets of the same launches.
constexpr size_t kGatherWordsAt = 1024;
// True if a kernel can gather for this many experts and columns of x, or fewer.
template <class C>
constexpr bool pair_gather_fits(int experts, int width) {
  return width <= PairGather::kSegmentsMost * C::kGatherBlocks * static_cast<int>(kFragmentWidth) &&
         (kGatherWordsAt + 1 + static_cast<size_t>(experts) * PairGather::kSegmentsMost) * sizeof(uint32_t) <=
             kGridWordsBytes;
}

// `to`: workspace for the ordered rows, bf16[rows, width]. clusters: CTA pairs of the grid. tile_rows and tile_row_blocks: per tile of a
// pair.
template <class C>
PairGather pair_gather(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to, int clusters,
                       int tile_rows, int tile_row_blocks, uint32_t* grid_words) {
  const FragmentShape shape = ExpertGemm::fragments(p);
  const int k_blocks = static_cast<int>(shape.k_blocks);
  PairGather g;
  g.from = a.x.as<const uint4>(), g.to = static_cast<uint4*>(to);
  g.from_stride = a.x.stride[0] / 8, g.chunks = static_cast<int>(p.width / 8);
  g.segments = pair_segments<C>(k_blocks), g.segment_blocks = pair_segment_blocks<C>(k_blocks);
  // As many waves as L2 can hold.
  constexpr double kBytes = 32e6;
  constexpr int kLeast = 2, kMost = 4;
  const double tiles = std::ceil(static_cast<double>(shape.row_blocks) / tile_row_blocks);
  const double rows = std::min(clusters / tiles * tile_rows, static_cast<double>(p.rows));
  g.ahead = std::clamp(static_cast<int>(kBytes / (rows * static_cast<double>(p.width) * 2)), kLeast, kMost);
  g.ctas_done = grid_words + kGatherWordsAt, g.rows_arrived = g.ctas_done + 1;
  return g;
}

#ifdef __CUDACC__

// Shared memory addresses of a gather warp: the staging of rows, the mbarrier that counts their bytes, and the word that counts the waves
// that the CTA has started (zero at first).
struct PairGatherPlace {
  uint32_t rows, barrier, waves_begun;

  __device__ __forceinline__ bool has_begun(int waves) const {
    uint32_t all = 0;
    if (threadIdx.x % 32 == 0) all = tile::look_at_shared_count(waves_begun);
    return uniform(static_cast<int>(all)) >= waves;
  }
};
// Records that the CTA has started to load tiles of `waves` more waves. Called by the warp that loads x.
__device__ __forceinline__ void begin_waves(uint32_t waves_begun, int waves) {
  if (threadIdx.x % 32 == 0) tile::add_shared_count(waves_begun, static_cast<uint32_t>(waves));
  __syncwarp();
}

// An item: rows of an expert that a warp copies at once, one segment of each.
struct GatherItem {
  int expert = 0, segment = 0, wave = 0;
  int row = 0, rows = 0;  // row: of y; rows == 0: no more items
};

// The items of one warp, in order. List: experts in the order of their tiles (`expert`, `listed` of them),
// and the number of tiles before each (`before`). In this form ptxas has enough registers next to wgmma; with
// deeper loop nests it did not.
template <class C, class List>
struct GatherItems {
  // index: of the next item in the wave; begin, end: experts of the wave; groups: groups of rows of these experts.
  int index, begin = 0, end = 0, groups = 0, wave = -1;

  __device__ __forceinline__ GatherItem next(const ExpertParameters& p, const PairGather& g,
                                             const List& list) {
    const int clusters = static_cast<int>(gridDim.x / 2);
#pragma unroll 1
    while (index >= groups * g.segments) {
      index -= groups * g.segments, groups = 0, begin = end;
      if (begin == list.listed) return {};
      ++wave;
#pragma unroll 1
      while (end < list.listed && list.before[end] < (wave + 1) * clusters)
        groups += groups_of(p, list.expert[end++]);
    }
    const int segment = index / groups;
    int group = index - segment * groups, at = begin;
#pragma unroll 1
    for (;; ++at) {
      const int own = groups_of(p, list.expert[at]);
      if (group < own) break;
      group -= own;
    }
    index += static_cast<int>(gridDim.x) * PairGather::kWarps;
    const int e = list.expert[at], first = group * C::kGatherRows;
    return {e, segment, wave, __ldg(p.row_begin + e) + first,
            min(C::kGatherRows, __ldg(p.row_count + e) - first)};
  }

 private:
  static __device__ __forceinline__ int groups_of(const ExpertParameters& p, int expert) {
    const int rows = __ldg(p.row_count + expert);
    return serves(p, rows) ? ceil_div(rows, C::kGatherRows) : 0;
  }
};

// The work of gather warp `warp` < kWarps of a CTA.
template <class C, class List>
__device__ __forceinline__ void gather_pair_rows(const ExpertParameters& p, const PairGather& g,
                                                 const List& list, const PairGatherPlace& place, int warp) {
  constexpr int kChunkBytes = 16, kBlockChunks = tile::kSwizzledRowBytes / kChunkBytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t staging = place.rows + lane * C::kGatherRowBytes, barrier = place.barrier;
  GatherItems<C, List> items{static_cast<int>(blockIdx.x) * PairGather::kWarps + warp};
  const auto token_of = [&](const GatherItem& item) {
    const int flat = lane < item.rows ? __ldg(p.order + item.row + lane) : -1;
    return flat < 0 ? -1 : flat / p.slots;
  };
  // Items whose rows are being written to memory, one per lane: their index in rows_arrived and their number of rows.
  int unpublished = 0, item_rows = 0;
  uint32_t* word = nullptr;
  const auto publish = [&] {
    tile::stores_are_done();
    tile::fence_global_for_async();
    __syncwarp();
    if (lane < unpublished) tile::add_written(word, static_cast<uint32_t>(item_rows));
    __syncwarp();
    unpublished = 0;
  };
  GatherItem now = items.next(p, g, list);
  int token = token_of(now);
#pragma unroll 1
  for (uint32_t parity = 0; now.rows > 0; parity ^= 1) {
    const int waves = now.wave + 1 - g.ahead;
    if (!place.has_begun(waves)) {
      publish();
      while (!place.has_begun(waves)) __nanosleep(200);
    }
    const int segment_chunks = g.segment_blocks * kBlockChunks, chunk = now.segment * segment_chunks;
    const uint32_t bytes = static_cast<uint32_t>(min(segment_chunks, g.chunks - chunk) * kChunkBytes);
    tile::stores_have_read();
    __syncwarp();
    tile::barrier_expect_by_warp(
        barrier, bytes * static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, token >= 0))));
    __syncwarp();
    if (token >= 0) tile::copy_bulk_of_lane(staging, g.from + token * g.from_stride + chunk, bytes, barrier);
    __syncwarp();
    if (unpublished >= (now.wave == 0 ? 1 : C::kGatherBatch)) publish();
    if (lane == unpublished)
      word = g.rows_arrived + now.expert * g.segments + now.segment, item_rows = now.rows;
    ++unpublished;
    uint4* to = g.to + static_cast<int64_t>(now.row + lane) * g.chunks + chunk;
    const bool mine = token >= 0;
    now = items.next(p, g, list);
    token = token_of(now);
    tile::barrier_wait_by_warp(barrier, parity);
    if (mine) tile::store_bulk_of_lane(to, staging, bytes);
    __syncwarp();
  }
  publish();
}

// The segments of an expert's rows that have arrived, for the warp that loads them.
struct PairArrived {
  uint32_t count = 0, wanted = 0;  // of the lane's segment
  const uint32_t* rows_arrived = nullptr;

  // Starts the load; the result is not needed yet.
  __device__ __forceinline__ void read(const ExpertParameters& p, const PairGather& g, int expert) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    wanted = lane < g.segments ? __ldg(p.row_count + expert) : 0;
    rows_arrived = g.rows_arrived + expert * g.segments + min(lane, g.segments - 1);
    read_again();
  }
  __device__ __forceinline__ void read_again() { count = tile::read_written(rows_arrived); }
  __device__ __forceinline__ uint32_t mask() const { return __ballot_sync(0xffffffffu, count >= wanted); }
  // Waits for `segment` to arrive.
  __device__ __forceinline__ void wait(int segment) {
    while (!(mask() >> segment & 1)) read_again();
    tile::fence_global_for_async();
    __syncwarp();
  }
};

// Called by the warp that has waited for all rows that this CTA loads. The last CTA resets the counters to zero.
__device__ __forceinline__ void finish_gather(const ExpertParameters& p, const PairGather& g) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t before = lane == 0 ? tile::take_turn(g.ctas_done) : 0;
  if (uniform(static_cast<int>(before)) != static_cast<int>(gridDim.x) - 1) return;
  const int words = p.experts * g.segments;
#pragma unroll 1
  for (int i = lane; i < words; i += 32) g.rows_arrived[i] = 0;
  if (lane == 0) *g.ctas_done = 0;
}

#endif

}  // namespace sluice::cuda
