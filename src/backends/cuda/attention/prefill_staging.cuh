// Where the TMA loads of keys and values arrive (prefill_producer.cuh): in the consumers'
// ring, or for e4m3 in a smaller ring, from which threads convert them to bf16.
#pragma once
#include "backends/cuda/attention/prefill_shape.cuh"

namespace sluice::cuda::attention {

// Static shared memory. C: element type of the caches.
template <class Shape, class C>
struct PrefillMemory : PrefillShared<Shape> {
  static constexpr bool kNarrow = false;
  // Keys, or values, as loaded: number of stages, bytes per stage, offset in dynamic shared memory.
  static constexpr int kCopyStages = Shape::kStages, kCopyBytes = Shape::kKeyBytes, kCopiesAt = 0;
  static constexpr int kSharedBytes = Shape::kSharedBytes;
  static constexpr int kFillers = 1;  // arrivals that complete a stage's full barrier for the consumers
  __device__ __forceinline__ PrefillShared<Shape>& copies() { return *this; }
};
template <class Shape>
struct PrefillMemory<Shape, E4M3> : PrefillShared<Shape> {
  static constexpr bool kNarrow = true;
  static constexpr int kCopyStages = 2, kCopyBytes = Shape::kKeyBytes / 2;
  static constexpr int kCopiesAt = Shape::kOnesAt + Shape::kOnesBytes;
  static constexpr int kSharedBytes = Shape::kSharedBytes + kCopyStages * 2 * kCopyBytes;
  static constexpr int kFillers = Shape::kFetchers;
  // As the members of PrefillShared with the same names.
  struct Copies {
    tile::RingBarriers<kCopyStages> keys, values;
    uint32_t absent[kCopyStages];
  };
  Copies narrow;
  __device__ __forceinline__ Copies& copies() { return narrow; }
};

// Converts the keys, or the values, of a stage from e4m3 (rows of 128 bytes, swizzled by TMA) to bf16 in the consumers'
// layout. Called by all producer threads but those of the first warp. The accesses of eight lanes have no bank conflicts.
template <class Shape>
__device__ __forceinline__ void widen_tile(uint32_t to, uint32_t from) {
  constexpr int kRows = Shape::kKeyBytes / 2 / tile::kSwizzledRowBytes;
  // a 128-byte row is a head of one position; otherwise of two positions
  constexpr bool kWide = Shape::kHalves == 2;
  const int me = static_cast<int>(threadIdx.x) - 32, chunk = me % 8;
  const int half = kWide ? chunk / 4 : 0;
#pragma unroll 2
  for (int row = me / 8; row < kRows; row += Shape::kFetchers / 8) {
    const uint4 narrow = tile::load_shared(from + tile::swizzled(row, 16 * chunk));
    uint4 wide[2];
    tile::bf16_of_e4m3(narrow, wide);
    const int key = kWide ? row : 2 * row + chunk / 4;
    const uint32_t at = to + half * Shape::kKeyHalf + tile::swizzled(key, 32 * (chunk % 4));
    tile::store_shared(at ^ 16 * half, half ? wide[1] : wide[0]);
    tile::store_shared(at ^ 16 * (half ^ 1), half ? wide[0] : wide[1]);
  }
}

}  // namespace sluice::cuda::attention
