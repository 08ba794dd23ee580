// Rows of tokens in the order of an expert GEMM's rows, written by the GEMM's own blocks (expert_gemm_bf16_pair.cuh) while they
// multiply: two warps of each have the copy engine bring rows to shared memory and from there to a workspace, from where whole
// boxes of them are fetched as if a kernel in front had gathered them. The tensor cores decide, so memory has time for it.
//
// Work goes by waves: the experts whose first tile is among the grid's first tiles, its second ones and so on. Within a wave it
// goes by chunks of k, so that the first tiles wait for little. Each item has its place in a fixed order and so its warp: all
// blocks must run (Launch::cooperative). A wave is copied while tiles a few turns in front of it are fetched, not earlier, so
// that its rows are still in the L2 then. No warp waits for a turn of its block before it has said what it has written: a tile
// waits for rows of its own wave, these for the start of a tile in front of it, so somebody always goes on.
#pragma once
#include "backends/cuda/kernels/expert_gemm_bf16_pair_list.cuh"
#include "backends/cuda/tile/meeting.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// What a warp copies at once, rows of an expert, a chunk of each.
struct GatherItem {
  int expert = 0, chunk = 0, wave = 0;
  int row = 0, rows = 0;  // of y; none: there is no more to do
};

// The items of one warp in their order.
template <class C>
struct GatherItems {
  int turn, begin = 0, end = 0, at = 0, chunk = 0, wave = -1;

  __device__ __forceinline__ GatherItem next(const ExpertParameters& p, const PairGather& g,
                                             const PairList<C>& list) {
    const int clusters = static_cast<int>(gridDim.x / 2),
              copiers = static_cast<int>(gridDim.x) * PairGather::kWarps;
#pragma unroll 1
    for (;;) {
      if (at == end) {
        at = begin;
        if (++chunk >= g.chunks || begin == end) {
          chunk = 0;
          at = begin = end;
          if (begin == list.experts) return {};
          ++wave;
#pragma unroll 1
          while (end < list.experts && list.before[end] < (wave + 1) * clusters) ++end;
          continue;
        }
      }
      const int e = list.expert[at], rows = __ldg(p.row_count + e), items = ceil_div(rows, C::kGatherRows);
      if (turn < items) {
        const int first = turn * C::kGatherRows;
        turn += copiers;
        return {e, chunk, wave, __ldg(p.row_begin + e) + first, min(C::kGatherRows, rows - first)};
      }
      turn -= items, ++at;
    }
  }
};

// What one of the kWarps warps of each block does, part < kWarps.
template <class C>
__device__ __forceinline__ void gather_pair_rows(const ExpertParameters& p, const PairGather& g,
                                                 const PairList<C>& list, const PairRing<C>& ring, int part) {
  constexpr int kPieceBytes = 16, kBlockPieces = tile::kSwizzledRowBytes / kPieceBytes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t staging = ring.base + ring.at.gathered + part * C::kGatherBytes + lane * C::kGatherRowBytes;
  const uint32_t barrier = ring.base + ring.at.came + part * 8;
  GatherItems<C> items{static_cast<int>(blockIdx.x) * PairGather::kWarps + part};
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
    if (!ring.has_begun(begun)) {
      say();
      while (!ring.has_begun(begun)) __nanosleep(200);
    }
    const int chunk_pieces = g.chunk_blocks * kBlockPieces, piece = now.chunk * chunk_pieces;
    const uint32_t bytes = static_cast<uint32_t>(min(chunk_pieces, g.pieces - piece) * kPieceBytes);
    tile::stores_have_read();
    __syncwarp();
    tile::barrier_expect_by_warp(
        barrier, bytes * static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, token >= 0))));
    __syncwarp();
    if (token >= 0) tile::copy_bulk_of_lane(staging, g.from + token * g.from_stride + piece, bytes, barrier);
    __syncwarp();
    if (unsaid >= (now.wave == 0 ? 1 : PairGather::kUnsaid)) say();
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
