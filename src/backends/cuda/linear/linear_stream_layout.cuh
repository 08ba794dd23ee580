// The shared memory of a CTA of linear_stream.cuh, and the features that the CTA computes.
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
// Bytes of a box of 8 features, and of one of 16.
constexpr int kEightBytes = kEight * tile::kSwizzledRowBytes, kBoxBytes = 2 * kEightBytes;
constexpr int kStageBytes = kWarps * kBoxBytes;
// Stages in flight while the ring fills for the first time. More would delay the
// loads for which other threads wait, because those queue behind the stages.
constexpr int kInFlight = 3;
static_assert(kStreamRowsMax * kSlab <= kConsumers);

// Shared memory of a CTA, with as many stages as fit next to narrow tiles of attention.
// kOneRow: the row is after the stages, and only its own column of sums is stored.
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

  // ring: address of the first stage.
  static __device__ __forceinline__ tile::Ring barriers(uint32_t ring) {
    return {ring + kFull, ring + kEmpty};
  }
  static_assert(kStages <= kWarps + 1, "one warp initialises the barriers of a stage");
};

struct Rows {
  const B16* x;
  int64_t x_stride;
  int tokens, width, k_blocks,
      chunks;        // a chunk is one box per consumer warp: a stage of 16 features, or half a stage of eight
  int each, shares;  // shares are multiples of `each` features; number of groups of `each` features
  int stages, row_at;  // stages of the ring; offset of the single row
  tile::Divisor ctas;
  uint32_t zero;  // always 0, but unknown to the compiler

  // This CTA computes features [first(), end()).
  __device__ __forceinline__ int first() const { return share(static_cast<int>(blockIdx.x)); }
  __device__ __forceinline__ int end() const { return share(static_cast<int>(blockIdx.x) + 1); }

 private:
  __device__ __forceinline__ int share(int cta) const { return shares * cta / ctas * each; }
};

constexpr int kRowWidthMax = kStageBytes / 2;  // elements of the widest single row, which fills one stage

}  // namespace sluice::cuda::stream
