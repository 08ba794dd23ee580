// CTA pairs (tiles.cuh) copy rows of tokens into the order of an expert GEMM's rows of y while they
// multiply. Two gather warps of each CTA move rows with bulk copies to shared memory and from there
// to a workspace. Another warp loads whole TMA boxes from the workspace, as if an earlier kernel had
// gathered the rows. The tensor cores are the bottleneck, so there is memory bandwidth to spare.
//
// The work is divided into waves. Wave 0 is the experts whose first tile is among the grid's first tiles (one
// per pair), wave 1 those whose first tile is among its second tiles, and so on. Within a wave, segments of k
// come one after the other, so that the first tiles do not wait for whole rows. The order of the items is fixed
// and assigns each item to a gather warp, so all CTAs must run at once (Launch::cooperative). A CTA copies a
// wave only a few waves before it loads tiles of that wave, so that the rows are still in L2 when they are read.
//
// There is no deadlock. Before a gather warp waits for its CTA to start a wave, it signals all rows that it has
// written. A tile waits for rows of its own wave, and copies of these rows wait only for the start of earlier
// tiles, so some warp can always proceed. This also holds if tiles are assigned by ticket, because a tile's
// wave follows from its position in the list: the rows of the first of all waiting tiles wait for no tile.
#pragma once
#include <algorithm>
#include <cmath>

#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/queue.h"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"

namespace sluice::cuda {

// The gather's kernel parameters. kWarps: gather warps per CTA.
struct PairGather {
  static constexpr int kWarps = 2;
  static constexpr int kSegmentsMax = 32;  // one per lane

  const uint4* from = nullptr;           // x: rows of tokens
  uint4* to = nullptr;                   // the workspace: rows in y's order, of `chunks` chunks
  int64_t from_stride = 0;               // in chunks
  int chunks = 0;                        // 16-byte chunks per row
  int segments = 0, segment_blocks = 0;  // segments per row; k blocks per segment
  int ahead = 1;                         // how many waves ahead of its current tile a CTA may copy rows
  // Zero before and after the launch: the number of CTAs that need no more rows; the rows that have arrived, [experts, segments].
  uint32_t *ctas_done = nullptr, *rows_arrived = nullptr;
};

// k is divided into segments with the same number of k blocks, except that
// the last may have fewer. C::kGatherBlocks: maximum k blocks per segment.
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

// Offset of the counters in the grid words; the launches' tickets are before them.
constexpr size_t kGatherWordsAt = 1024;
// True if a kernel can gather for `experts` experts and `width` columns of x.
template <class C>
constexpr bool pair_gather_fits(int experts, int width) {
  return width <= PairGather::kSegmentsMax * C::kGatherBlocks * static_cast<int>(kFragmentWidth) &&
         (kGatherWordsAt + 1 + static_cast<size_t>(experts) * PairGather::kSegmentsMax) * sizeof(uint32_t) <=
             kGridWordsBytes;
}

// to: workspace for the rows in y's order, bf16[rows, width]. clusters: CTA
// pairs in the grid. tile_rows, tile_row_blocks: size of the tile of a pair.
template <class C>
PairGather pair_gather(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to, int clusters,
                       int tile_rows, int tile_row_blocks, uint32_t* grid_words) {
  const FragmentShape shape = ExpertGemm::fragments(p);
  const int k_blocks = static_cast<int>(shape.k_blocks);
  PairGather g;
  g.from = a.x.as<const uint4>(), g.to = static_cast<uint4*>(to);
  g.from_stride = a.x.stride[0] / 8, g.chunks = static_cast<int>(p.width / 8);
  g.segments = pair_segments<C>(k_blocks), g.segment_blocks = pair_segment_blocks<C>(k_blocks);
  // As many waves ahead as fit into L2.
  constexpr double kBytes = 32e6;
  constexpr int kMin = 2, kMax = 4;
  const double tiles = std::ceil(static_cast<double>(shape.row_blocks) / tile_row_blocks);
  const double rows = std::min(clusters / tiles * tile_rows, static_cast<double>(p.rows));
  g.ahead = std::clamp(static_cast<int>(kBytes / (rows * static_cast<double>(p.width) * 2)), kMin, kMax);
  g.ctas_done = grid_words + kGatherWordsAt, g.rows_arrived = g.ctas_done + 1;
  return g;
}

#ifdef __CUDACC__

// Shared memory addresses for a gather warp: the buffer for rows, the mbarrier that
// counts their bytes, and the counter of waves that the CTA has started (initially zero).
struct PairGatherPlace {
  uint32_t rows, barrier, waves_begun;

  __device__ __forceinline__ bool has_begun(int waves) const {
    uint32_t all = 0;
    if (threadIdx.x % 32 == 0) all = tile::look_at_shared_count(waves_begun);
    return uniform(static_cast<int>(all)) >= waves;
  }
};
// Counts `waves` more waves as started: the CTA begins to load their tiles. Called by the warp that loads x.
__device__ __forceinline__ void begin_waves(uint32_t waves_begun, int waves) {
  if (threadIdx.x % 32 == 0) tile::add_shared_count(waves_begun, static_cast<uint32_t>(waves));
  __syncwarp();
}

// An item of a gather warp's work: several rows of an expert, one segment of k.
struct GatherItem {
  int expert = 0, segment = 0, wave = 0;
  int row = 0, rows = 0;  // row: the first, as a row of y; rows == 0: no more items
};

// The items of one warp, in order. List: experts in the order of their tiles (`expert`,
// of which there are `listed`), and the number of tiles before each (`before`). The loops
// are arranged so that registers suffice next to wgmma's; with deeper nesting they did not.
template <class C, class List>
struct GatherItems {
  // index: the next item's index in the wave; begin, end: the wave's range of listed experts; groups: number of groups of kGatherRows rows in that range.
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

// The loop of gather warp `warp` < kWarps of a CTA.
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
  // Items whose stores to the workspace may still be in flight, one per lane: their counter in rows_arrived and their number of rows.
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

// Which segments of an expert's rows have arrived, for the warp that loads the rows.
struct PairArrived {
  uint32_t count = 0, wanted = 0;  // rows of the lane's segment: arrived; in total
  const uint32_t* rows_arrived = nullptr;

  // Starts to load the counters; the result is needed only by wait().
  __device__ __forceinline__ void read(const ExpertParameters& p, const PairGather& g, int expert) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    wanted = lane < g.segments ? __ldg(p.row_count + expert) : 0;
    rows_arrived = g.rows_arrived + expert * g.segments + min(lane, g.segments - 1);
    read_again();
  }
  __device__ __forceinline__ void read_again() { count = tile::read_written(rows_arrived); }
  __device__ __forceinline__ uint32_t mask() const { return __ballot_sync(0xffffffffu, count >= wanted); }
  // Waits until the rows of `segment` have arrived.
  __device__ __forceinline__ void wait(int segment) {
    while (!(mask() >> segment & 1)) read_again();
    tile::fence_global_for_async();
    __syncwarp();
  }
};

// Called by the warp that loads x, when all rows that its CTA needs have arrived. The last CTA resets the counters to zero.
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
