// The shared memory of a CTA of linear_stream.cuh, and its share of the features.
#pragma once
#include <cstdint>

#include "backends/cuda/linear/linear_stream.h"
#include "backends/cuda/tile/divisor.cuh"
#include "backends/cuda/tile/operand.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda::stream {

using B16 = __nv_bfloat16;

constexpr int kEight = kStreamEight, kSlab = kStreamSlab, kBlock = 64;  // values of k per box
constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32;
// Bytes of a box of 8 and of 16 features.
constexpr int kEightBytes = kEight * tile::kSwizzledRowBytes, kBoxBytes = 2 * kEightBytes;
constexpr int kStageBytes = kWarps * kBoxBytes;
// Stages in flight while the ring fills for the first time. More stages would delay loads that other threads wait for, because these loads
// queue after the stages.
constexpr int kInFlight = 3;
static_assert(kStreamRowsMost * kSlab <= kConsumers);

// Shared memory of a CTA. It has as many stages as fit beside narrow tiles of attention. A single row follows the stages, and its sums are
// only its own column.
template <bool kOneRow>
struct Layout {
  static constexpr bool kSingle = kOneRow;
  static constexpr int kStages = 9, kRowBytes = kSingle ? kStageBytes / 2 : 0;
  static constexpr int kSumBytes =
      // Per unit: 16 sums per warp for a single row, otherwise four sums per lane.
      kWarps * (kSingle ? kSlab * 4 : 32 * 16);
  static constexpr int kSums = kStages * kStageBytes + kRowBytes, kFull = kSums + 2 * kSumBytes,
                       kEmpty = kFull + 8 * kStages, kBytes = kEmpty + 8 * kStages;
  static_assert(2 * (kBytes + 1024) > 228 << 10, "one CTA on an SM");

  // ring: the address of the first stage.
  static __device__ __forceinline__ tile::Ring barriers(uint32_t ring) {
    return {ring + kFull, ring + kEmpty};
  }
  static_assert(kStages <= kWarps + 1, "one warp initialises the barriers of a stage");
};

struct Rows {
  const B16* x;
  int64_t x_stride;
  int tokens, width, k_blocks,
      chunks;  // a chunk is one box for each consumer warp: a stage of 16 features, or half a stage of eight
  int each, shares;    // granularity of the shares in features; how many such groups there are
  int stages, row_at;  // stages of the ring; offset of a single row
  tile::Divisor ctas;
  uint32_t zero;  // always 0, but unknown to the compiler

  // This CTA's features are [first, end).
  __device__ __forceinline__ int first() const { return share(static_cast<int>(blockIdx.x)); }
  __device__ __forceinline__ int end() const { return share(static_cast<int>(blockIdx.x) + 1); }

 private:
  __device__ __forceinline__ int share(int cta) const { return shares * cta / ctas * each; }
};

constexpr int kRowWidthMost = kStageBytes / 2;  // for a single row

}  // namespace sluice::cuda::stream
