// What attention kernels need to know of a step: the rows of a sequence, the positions to which they attend, and the scaling
// of sums to y. Scores are in base 2: they are multiplied by scale * log2(e) once, so that a weight is a single ex2.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/tile/divisor.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::attention {

constexpr float kNothing = -__builtin_huge_valf();
constexpr float kLog2E = 1.4426950408889634f;

// What every kernel reads of a problem and its tensors. Strides of rows are in elements.
struct Step {
  const void* q;
  void* y;
  const int32_t *page_table, *q_begin, *kv_len;
  const void* sinks;  // may be null
  int64_t q_stride, y_stride, tokens;
  int limit, window;  // positions in a page table; positions in a window (0: no window)
  int sequences, heads, pages, pages_per_seq;
  tile::Divisor kv_heads, group, page_size;
  int settled;
  int sinks_bf16;
  int q_pairs, q_wide;   // rows of q are aligned to 4 bytes; to 16 bytes
  int y_wide, y_widest;  // rows of y are aligned to 8 bytes; to 16 bytes
  float scale;           // times log2(e)
};

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The factor that converts weights relative to `from` to weights relative to `to` >= from.
__device__ __forceinline__ float rescale(float from, float to) {
  return from == to ? 1.f : exp2_of(from - to);
}
// The base of weights for this largest score. If all scores are -inf, it is 0, so that weights become zero and not NaN.
__device__ __forceinline__ float base_of(float largest) { return largest == kNothing ? 0.f : largest; }

// The positions to which a row attends: [first, end).
struct Span {
  int first, end;
  __device__ __forceinline__ bool sees(int j) const { return j >= first && j < end; }
};
// For the row of a token at `position` >= -1. A token at -1 attends to nothing.
__device__ __forceinline__ Span span_at(const Step& p, int position) {
  const int end = min(position + 1, p.limit);
  const int first = p.window > 0 ? max(position - p.window + 1, 0) : 0;
  return {min(first, end), end};
}

// The queries of one sequence and one kv head as a list: query i is head i % group of row i / group.
struct Queries {
  int sequence;
  int first;       // the first query of this tile
  int count;       // queries of the whole sequence
  int begin;       // the sequence's first row in q
  int64_t kv_len;  // the position after the sequence's last row
  __device__ __forceinline__ int rows(const tile::Divisor& group) const { return count / group; }
  __device__ __forceinline__ int position_of(const Step& p, int query) const {
    return static_cast<int>(max(kv_len - rows(p.group) + query / p.group, int64_t{-1}));
  }
  __device__ __forceinline__ Span span_of(const Step& p, int query) const {
    return span_at(p, position_of(p, query));
  }
  // Offset in q or y of the head_dim elements of a query.
  __device__ __forceinline__ int64_t place(const Step& p, int query, int kv_head, int dim,
                                           int64_t stride) const {
    const int row = query / p.group;
    return (begin + row) * stride + static_cast<int64_t>(kv_head * p.group + query - row * p.group) * dim;
  }
};

// The positions to which some of the queries `first` to `last` attend, and those to which all of them attend.
struct SeenBy {
  Span some, all;
  __device__ __forceinline__ SeenBy(const Step& p, const Queries& of, int first, int last) {
    const Span low = of.span_of(p, first), high = of.span_of(p, last);
    some = {low.first, high.end}, all = {high.first, low.end};
  }
};

// Loads two adjacent elements of a query, beginning at an even index.
__device__ __forceinline__ uint32_t two_of(const Step& p, const __nv_bfloat16* at) {
  if (p.q_pairs) return *reinterpret_cast<const uint32_t*>(at);
  return __bfloat16_as_ushort(at[0]) | static_cast<uint32_t>(__bfloat16_as_ushort(at[1])) << 16;
}

// How the sequences of a kernel are divided into tiles of queries.
struct Tiling {
  int tile;         // queries per tile
  int least, most;  // the kernel computes sequences with `least` to `most` queries
  int by_row;       // a tile is of a single row, so tiles follow from rows without a search
};

// What find_tile() keeps in shared memory.
struct TileSearch {
  Span tiles;  // indices of the tiles of the found sequence; unused if tiles are of single rows
  // Aligned to 16 bytes: it is read four words at a time, and without alignment
  // such a read could include an adjacent variable that is being written.
  alignas(16) int of_warp[32];
  Queries found;
  int hit;
};

// Finds tile `index` of single-row tiles in a pure decode step, where sequence i has exactly row i. Every thread finds
// it for itself, which is faster than find_tile(). Returns false if the sequence does not have exactly that row.
__device__ __forceinline__ bool own_row(const Step& p, const Tiling& t, int index, Queries& found) {
  const int tiles_of_row = (p.group + t.tile - 1) / t.tile, row = index / tiles_of_row;
  if (!t.by_row || row >= p.sequences || row >= p.tokens) return false;
  const int begin = p.q_begin[row], end = p.q_begin[row + 1];
  found = {row, (index - row * tiles_of_row) * t.tile, p.group, row, p.kv_len[row]};
  return begin == row && end == row + 1;
}

// Finds tile `index` and stores it in search.found, which the calling threads then see.
// Returns false if there are fewer tiles. Called by the first kThreads threads of a CTA; uses
// named barrier 1. A barrier must be between the last read of search.found and the next call.
template <int kThreads>
__device__ __forceinline__ bool find_tile(const Step& p, const Tiling& t, int index, TileSearch& search) {
  const int tid = threadIdx.x, lane = tid % 32;
  const int tiles_of_row = (p.group + t.tile - 1) / t.tile;
  if (tid == 0) search.hit = 0;
  tile::sync_threads<kThreads>(1);
  int before = 0;
  const int rows = p.q_begin[p.sequences];
  // After the step's sequences, the tables may have more sequences, without rows.
  for (int base = 0; base < p.sequences && (base == 0 || p.q_begin[base] < rows); base += kThreads) {
    const int s = base + tid;
    const bool there = s < p.sequences;
    const int begin = there ? p.q_begin[s] : 0, end = there ? p.q_begin[s + 1] : 0;
    const int64_t kv_len = there ? p.kv_len[s] : 0;
    if (t.by_row) {
      const int row = index / tiles_of_row;
      if (row >= begin && row < end && row < p.tokens) {
        search.found = {s, (index - row * tiles_of_row) * t.tile, p.group, row, kv_len - (end - row) + 1};
        search.hit = 1;
      }
      continue;
    }
    const int count = max(end - begin, 0) * p.group;
    const int tiles = count >= t.least && count <= t.most ? (count + t.tile - 1) / t.tile : 0;
    int upto = tiles;
#pragma unroll
    for (int far = 1; far < 32; far *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, far);
      upto += lane >= far ? other : 0;
    }
    if (lane == 31) search.of_warp[tid / 32] = upto;
    tile::sync_threads<kThreads>(1);
    int all = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w == tid / 32) upto += all;
      all += search.of_warp[w];
    }
    if (index >= before + upto - tiles && index < before + upto) {
      search.tiles = {before + upto - tiles, before + upto};
      search.found = {s, (index - search.tiles.first) * t.tile, count, begin, kv_len};
      search.hit = 1;
    }
    before += all;
    tile::sync_threads<kThreads>(1);
    if (index < before) break;
  }
  tile::sync_threads<kThreads>(1);
  return search.hit != 0;
}

// The sink of a head; kNothing, which gives weight zero, if there are no sinks.
__device__ __forceinline__ float sink_of(const Step& p, int head) {
  if (!p.sinks) return kNothing;
  return kLog2E * (p.sinks_bf16 ? tile::to_f32(static_cast<const __nv_bfloat16*>(p.sinks)[head])
                                : static_cast<const float*>(p.sinks)[head]);
}
// The factor that converts a weighted sum of values, relative to `largest`, to y (see scaled()).
// It includes the sink and the division by the sum of weights. kNothing if all weights are zero.
__device__ __forceinline__ float share_of(float sink, float largest, float sum) {
  const float most = fmaxf(largest, sink);
  if (most == kNothing && sum == 0 && sink == kNothing) return kNothing;
  const float base = base_of(most), factor = rescale(largest, base);
  return factor / (sum * factor + exp2_of(sink - base));
}
// If all weights are zero, y is zero, even if a value with weight zero is infinite.
__device__ __forceinline__ float scaled(float sum, float share) {
  return share == kNothing ? 0.f : sum * share;
}

// Packs two bf16 in a word, the first in the low half.
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
// Stores eight bf16 at any address.
__device__ __forceinline__ void store_one_by_one(__nv_bfloat16* to, uint4 eight) {
  const uint32_t pairs[] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = __ushort_as_bfloat16(static_cast<unsigned short>(pairs[i] & 0xffffu));
    to[2 * i + 1] = __ushort_as_bfloat16(static_cast<unsigned short>(pairs[i] >> 16));
  }
}
// Adds (two bf16 x 0) to `zeros`. NaN or infinity make the result NaN, and it stays NaN.
__device__ __forceinline__ uint32_t add_none_of(uint32_t pair, uint32_t zeros) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(0), "r"(zeros));
  return out;
}
// Sets the highest bit of each bf16 of a pair that is NaN or infinite, that is, whose exponent bits are all set.
__device__ __forceinline__ uint32_t not_finite(uint32_t pair) {
  return ((pair & 0x7f807f80u) + 0x00800080u) & 0x80008000u;
}

}  // namespace sluice::cuda::attention
