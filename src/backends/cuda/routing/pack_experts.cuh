// Shared by the kernels of pack_experts_fragments_sm90.cu: parameters, and the row block that a CTA packs.
#pragma once
#include <cstdint>

#include "ops/pack_experts.h"

namespace sluice::cuda::pack {

constexpr int kGroupThreads = static_cast<int>(kFragmentThreads);  // threads that pack one block of 64 x 64
constexpr int kThreads = 256, kGroups = kThreads / kGroupThreads;
constexpr int kRows = static_cast<int>(kFragmentRows);
// Scales are staged in shared memory, kTileBlocks k blocks at a time: kTileWords words per k block, kTileStride bytes
// between k blocks. The stride includes a word of padding, which puts the same byte of adjacent k blocks in different banks.
constexpr int kTileBlocks = 32, kTileWords = kRows / 2, kTileStride = 4 * kTileWords + 4;
constexpr int kAhead = 4;  // k blocks that a thread reads before it writes the first
constexpr unsigned kAllLanes = 0xffffffffu;

struct Parameters {
  PackExperts::Problem problem;
  uint8_t *rows, *row_scales, *packed, *packed_scales;
  int64_t row_bytes;
  int blocks;  // scales per row
};

// Several CTAs (gridDim.z) may divide a row block; their threads interleave.
__device__ __forceinline__ int first_of(int threads) { return blockIdx.z * threads + threadIdx.x; }
__device__ __forceinline__ int stride_of(int items) { return gridDim.z * items; }

// The row block of one expert that a CTA packs.
struct RowBlock {
  FragmentShape shape;
  int64_t block;
  uint8_t *rows, *row_scales;     // of the expert, in checkpoint order
  uint8_t *codes, *scales, *top;  // of the row block, packed
};
__device__ __forceinline__ RowBlock row_block(const Parameters& p) {
  const PackExperts::Problem& q = p.problem;
  const WeightFormat f = PackExperts::format(q);
  const FragmentShape shape = fragment_shape(q.features, q.gated, q.width);
  const int64_t expert = blockIdx.y, block = blockIdx.x, rows = q.gated ? 2 * q.features : q.features;
  uint8_t* scales = p.packed_scales + expert * shape.scale_bytes(f);
  return {shape,
          block,
          p.rows + expert * rows * p.row_bytes,
          p.row_scales + expert * rows * p.blocks,
          p.packed + expert * shape.code_bytes(f) + block * shape.k_blocks * fragment_code_bytes(f.w),
          scales + block * shape.k_blocks * fragment_scale_bytes(f),
          scales + shape.top_begin(f) + block * fragment_top_bytes(f)};
}

// For each row of the row block: its row in the checkpoint or -1, its largest scale, and whether one of its scales is NaN.
struct Shared {
  int row[kRows];
  uint8_t top[kRows];
  bool nan[kRows];
  alignas(4) uint8_t tile[kTileBlocks * kTileStride];
};
__device__ __forceinline__ void find_rows(const Parameters& p, int64_t block, Shared* shared) {
  if (threadIdx.x < kRows)
    shared->row[threadIdx.x] = static_cast<int>(PackExperts::source_row(p.problem, {block, threadIdx.x}));
  __syncthreads();
}

// Zeros the bytes of the scales after the last row block.
__device__ __forceinline__ void clear_behind(const Parameters& p, const RowBlock& at) {
  const WeightFormat f = PackExperts::format(p.problem);
  const int64_t used = at.shape.top_begin(f) + at.shape.row_blocks * fragment_top_bytes(f);
  if (blockIdx.z == 0 && at.block + 1 == at.shape.row_blocks && threadIdx.x < at.shape.scale_bytes(f) - used)
    at.top[fragment_top_bytes(f) + threadIdx.x] = 0;
}

}  // namespace sluice::cuda::pack
