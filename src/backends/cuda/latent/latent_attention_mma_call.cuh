// Shared by the three launches of latent_attention_mma_sm90.cu: parameters, workspace, and how the keys of a row are split.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/tile/divisor.cuh"

namespace sluice::cuda::latent_mma {

using Bf16 = __nv_bfloat16;

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kPanel = 64;            // columns in 128 bytes, a row of a panel in shared memory
constexpr int kHeads = 64;            // heads per CTA of attend()
constexpr int kTileKeys = 64;         // keys per tile
constexpr int kRowSplits = 32;        // splits per row; one per lane
constexpr int kRopeColumns = kPanel;  // columns of a workspace row after the first `rank`; zeros past `rope`

// Partial result of one split of one head of one row, except its latent, which is written only if state is kSomeKeys.
struct alignas(16) Part {
  float largest, sum;  // the largest score, in base 2; the sum of weights relative to it
  int state, unused;
};
constexpr int kNobody = -1, kNoKeys = 0, kSomeKeys = 1;

// Parameters of all three launches. Strides of rows are in elements.
struct Parameters {
  const Bf16 *q, *kv_b, *cache;
  const int32_t *page_table, *q_begin, *kv_len;
  Bf16* y;
  int64_t q_stride, y_stride;
  int64_t first, rows;  // rows of this call
  int64_t sequences, pages, pages_per_seq;
  int rows_of_cta;  // maximum rows of one sequence per CTA of attend()
  tile::Divisor page_size;
  int heads, nope, rope, v_dim, splits;
  int fewest_tiles;  // minimum number of tiles per split
  float scale;       // includes log2(e)
  Bf16* queries;     // [rows, heads, rank + kRopeColumns]
  Bf16* latents;     // [rows, heads, splits, rank], columns in the order of stored_column()
  Part* parts;       // [rows, heads, splits]
};

// The columns of partial latents are permuted, so that a thread stores 16 bytes of its accumulators at once: within 32
// columns, chunk c has columns 8 j + 2 c and 8 j + 2 c + 1 for j = 0 to 3. Returns the first column of pair j of a chunk.
__device__ __forceinline__ int stored_column(int chunk, int j) {
  return chunk / 4 * 32 + 8 * j + chunk % 4 * 2;
}

// The keys of a split. They depend only on the row's position and on the configuration, not on the rest of the step.
struct Span {
  int begin, end;
};
__device__ __forceinline__ Span keys_of_split(int keys, int split, int fewest_tiles) {
  const int tiles = (keys + kTileKeys - 1) / kTileKeys;
  const int each = max((tiles + kRowSplits - 1) / kRowSplits, fewest_tiles) * kTileKeys;
  const int begin = min(split * each, keys);
  return {begin, min(begin + each, keys)};
}

}  // namespace sluice::cuda::latent_mma
