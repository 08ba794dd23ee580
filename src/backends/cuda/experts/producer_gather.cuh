// Rows of tokens in the order of an expert GEMM's rows, written by the GEMM's own pairs of blocks (expert_gemm_tile.cuh,
// expert_gemm_bf16_pair.cuh) while they multiply: two warps of each block have the copy engine bring rows to shared memory and
// from there to a workspace, from where whole boxes of them are fetched as if a kernel in front had gathered them. The tensor
// cores decide, so memory has time for it.
//
// Work goes by waves: the experts whose first tile is among the grid's first tiles, its second ones and so on. Within a wave it
// goes by chunks of k, so that the first tiles wait for little. Each item has its place in a fixed order and so its warp: all
// blocks must run (Launch::cooperative). A wave is copied while tiles a few turns in front of it are fetched, not earlier, so
// that its rows are still in the L2 then. No warp waits for a turn of its block before it has said what it has written: a tile
// waits for rows of its own wave, these for the start of a tile in front of it, so somebody always goes on. That holds too where
// tiles go to whoever asks, since a turn is counted by the tile's place in the list: of all tiles that wait, the first one's
// rows wait for none.
#pragma once
#include <algorithm>
#include <cmath>

#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/queue.h"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/grid_barrier.cuh"

namespace sluice::cuda {

// What a kernel is told of it. kWarps: of a block.
struct PairGather {
  static constexpr int kWarps = 2;
  static constexpr int kChunksMost = 32;  // a lane for each

  const uint4* from = nullptr;       // rows of tokens
  uint4* to = nullptr;               // rows in order, `pieces` each
  int64_t from_stride = 0;           // pieces
  int pieces = 0;                    // 16 bytes each
  int chunks = 0, chunk_blocks = 0;  // of k; k blocks of a chunk
  int ahead = 1;                     // waves from the tile that a block fetches to what it may copy
  // Zeros, left zero: blocks that need no more rows, and rows that have come, [experts, chunks].
  uint32_t *left = nullptr, *came = nullptr;
};

// How k is cut: k blocks of a chunk, all equal but the last. C::kGatherBlocks: the most.
template <class C>
constexpr int pair_chunk_blocks(int k_blocks) {
  const int chunks = (k_blocks + C::kGatherBlocks - 1) / C::kGatherBlocks;
  return (k_blocks + chunks - 1) / chunks;
}
template <class C>
constexpr int pair_chunks(int k_blocks) {
  const int each = pair_chunk_blocks<C>(k_blocks);
  return (k_blocks + each - 1) / each;
}

// In front of the counts are those of the same launches' tickets.
constexpr size_t kGatherWordsAt = 1024;
// Whether a kernel can gather for so many experts and columns of x, or fewer.
template <class C>
constexpr bool pair_gather_fits(int experts, int width) {
  return width <= PairGather::kChunksMost * C::kGatherBlocks * static_cast<int>(kFragmentWidth) &&
         (kGatherWordsAt + 1 + static_cast<size_t>(experts) * PairGather::kChunksMost) * sizeof(uint32_t) <=
             kGridWordsBytes;
}

// `to`: memory for the rows in order, bf16[rows, width]; clusters: pairs of the grid; tile_rows, tile_row_blocks: of a pair's
// tile.
template <class C>
PairGather pair_gather(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, void* to, int clusters,
                       int tile_rows, int tile_row_blocks, uint32_t* grid_words) {
  const FragmentShape shape = ExpertGemm::fragments(p);
  const int k_blocks = static_cast<int>(shape.k_blocks);
  PairGather g;
  g.from = a.x.as<const uint4>(), g.to = static_cast<uint4*>(to);
  g.from_stride = a.x.stride[0] / 8, g.pieces = static_cast<int>(p.width / 8);
  g.chunks = pair_chunks<C>(k_blocks), g.chunk_blocks = pair_chunk_blocks<C>(k_blocks);
  // As many waves as may wait in the L2.
  constexpr double kBytes = 32e6;
  constexpr int kLeast = 2, kMost = 4;
  const double tiles = std::ceil(static_cast<double>(shape.row_blocks) / tile_row_blocks);
  const double rows = std::min(clusters / tiles * tile_rows, static_cast<double>(p.rows));
  g.ahead = std::clamp(static_cast<int>(kBytes / (rows * static_cast<double>(p.width) * 2)), kLeast, kMost);
  g.left = grid_words + kGatherWordsAt, g.came = g.left + 1;
  return g;
}

#ifdef __CUDACC__

// Shared memory by its addresses: where a warp's rows pass through, the barrier that counts them, and the word that says how
// many turns of the grid the block has begun, a zero at first.
struct PairGatherPlace {
  uint32_t rows, barrier, begun;

  __device__ __forceinline__ bool has_begun(int turns) const {
    uint32_t all = 0;
    if (threadIdx.x % 32 == 0) all = tile::look_at_shared_count(begun);
    return uniform(static_cast<int>(all)) >= turns;
  }
};
// The block has begun to fetch tiles of so many turns more: by the warp that fetches x.
__device__ __forceinline__ void begin_turns(uint32_t begun, int turns) {
  if (threadIdx.x % 32 == 0) tile::add_shared_count(begun, static_cast<uint32_t>(turns));
  __syncwarp();
}

// What a warp copies at once, rows of an expert, a chunk of each.
struct GatherItem {
  int expert = 0, chunk = 0, wave = 0;
  int row = 0, rows = 0;  // of y; none: there is no more to do
};

// The items of one warp in their order. List: experts in the order of their tiles (`expert`, `listed` of them) and how many tiles
// are in front of each (`before`). In this form ptxas has registers enough beside wgmma; with more loops in each other it had not.
template <class C, class List>
struct GatherItems {
  int turn, begin = 0, end = 0, groups = 0,
            wave = -1;  // experts of the wave, and groups of rows that they have

  __device__ __forceinline__ GatherItem next(const ExpertParameters& p, const PairGather& g,
                                             const List& list) {
    const int clusters = static_cast<int>(gridDim.x / 2);
#pragma unroll 1
    while (turn >= groups * g.chunks) {
      turn -= groups * g.chunks, groups = 0, begin = end;
      if (begin == list.listed) return {};
      ++wave;
#pragma unroll 1
      while (end < list.listed && list.before[end] < (wave + 1) * clusters)
        groups += groups_of(p, list.expert[end++]);
    }
    const int chunk = turn / groups;
    int group = turn - chunk * groups, at = begin;
#pragma unroll 1
    for (;; ++at) {
      const int own = groups_of(p, list.expert[at]);
      if (group < own) break;
      group -= own;
    }
    turn += static_cast<int>(gridDim.x) * PairGather::kWarps;
    const int e = list.expert[at], first = group * C::kGatherRows;
    return {e, chunk, wave, __ldg(p.row_begin + e) + first,
            min(C::kGatherRows, __ldg(p.row_count + e) - first)};
  }

 private:
  static __device__ __forceinline__ int groups_of(const ExpertParameters& p, int expert) {
    const int rows = __ldg(p.row_count + expert);
    return serves(p, rows) ? ceil_div(rows, C::kGatherRows) : 0;
  }
};

// What one of the kWarps warps of each block does, part < kWarps.
template <class C, class List>
__device__ __forceinline__ void gather_pair_rows(const ExpertParameters& p, const PairGather& g,
                                                 const List& list, const PairGatherPlace& place, int part) {
  constexpr int kStagedBytes = 16, kBlockPieces = tile::kSwizzledRowBytes / kStagedBytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t staging = place.rows + lane * C::kGatherRowBytes, barrier = place.barrier;
  GatherItems<C, List> items{static_cast<int>(blockIdx.x) * PairGather::kWarps + part};
  const auto token_of = [&](const GatherItem& item) {
    const int flat = lane < item.rows ? __ldg(p.order + item.row + lane) : -1;
    return flat < 0 ? -1 : flat / p.slots;
  };
  // Items whose rows are on their way to memory, one a lane: their words of `came` and rows.
  int unsaid = 0, rows_said = 0;
  uint32_t* word = nullptr;
  const auto say = [&] {
    tile::stores_are_done();
    tile::fence_global_for_async();
    __syncwarp();
    if (lane < unsaid) tile::add_written(word, static_cast<uint32_t>(rows_said));
    __syncwarp();
    unsaid = 0;
  };
  GatherItem now = items.next(p, g, list);
  int token = token_of(now);
#pragma unroll 1
  for (uint32_t parity = 0; now.rows > 0; parity ^= 1) {
    const int begun = now.wave + 1 - g.ahead;
    if (!place.has_begun(begun)) {
      say();
      while (!place.has_begun(begun)) __nanosleep(200);
    }
    const int chunk_pieces = g.chunk_blocks * kBlockPieces, piece = now.chunk * chunk_pieces;
    const uint32_t bytes = static_cast<uint32_t>(min(chunk_pieces, g.pieces - piece) * kStagedBytes);
    tile::stores_have_read();
    __syncwarp();
    tile::barrier_expect_by_warp(
        barrier, bytes * static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, token >= 0))));
    __syncwarp();
    if (token >= 0) tile::copy_bulk_of_lane(staging, g.from + token * g.from_stride + piece, bytes, barrier);
    __syncwarp();
    if (unsaid >= (now.wave == 0 ? 1 : C::kGatherUnsaid)) say();
    if (lane == unsaid) word = g.came + now.expert * g.chunks + now.chunk, rows_said = now.rows;
    ++unsaid;
    uint4* to = g.to + static_cast<int64_t>(now.row + lane) * g.pieces + piece;
    const bool mine = token >= 0;
    now = items.next(p, g, list);
    token = token_of(now);
    tile::barrier_wait_by_warp(barrier, parity);
    if (mine) tile::store_bulk_of_lane(to, staging, bytes);
    __syncwarp();
  }
  say();
}

// Which chunks of an expert's rows have come, as whoever fetches them sees it.
struct PairArrived {
  uint32_t count = 0, wanted = 0;  // of the lane's chunk
  const uint32_t* came = nullptr;

  // Asks, without waiting for the answer.
  __device__ __forceinline__ void ask(const ExpertParameters& p, const PairGather& g, int expert) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    wanted = lane < g.chunks ? __ldg(p.row_count + expert) : 0;
    came = g.came + expert * g.chunks + min(lane, g.chunks - 1);
    ask_again();
  }
  __device__ __forceinline__ void ask_again() { count = tile::read_written(came); }
  __device__ __forceinline__ uint32_t mask() const { return __ballot_sync(0xffffffffu, count >= wanted); }
  // Until `chunk` is there.
  __device__ __forceinline__ void wait(int chunk) {
    while (!(mask() >> chunk & 1)) ask_again();
    tile::fence_global_for_async();
    __syncwarp();
  }
};

// The warp that has waited for all that this block fetches says so; the last one leaves zeros.
__device__ __forceinline__ void leave_gathered(const ExpertParameters& p, const PairGather& g) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t before = lane == 0 ? tile::take_turn(g.left) : 0;
  if (uniform(static_cast<int>(before)) != static_cast<int>(gridDim.x) - 1) return;
  const int words = p.experts * g.chunks;
#pragma unroll 1
  for (int i = lane; i < words; i += 32) g.came[i] = 0;
  if (lane == 0) *g.left = 0;
}

#endif

}  // namespace sluice::cuda
