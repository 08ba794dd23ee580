// What the producer and the consumers of prefill.cuh share: shapes, the call, and shared memory.
#pragma once
#include <type_traits>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda::attention {

// C: elements of the caches.
template <int kDim, class C>
struct PrefillShape {
  static constexpr int kConsumers = kDim == 64 ? 3 : 2, kQueries = 64 * kConsumers;
  static constexpr bool kNarrow = std::is_same_v<C, E4M3>;
  static constexpr int kKeys = kDim == 64 ? 96
                               : kNarrow  ? 64
                                          : 112;  // of a tile (docs/lab/cuda-attention.md)
  static constexpr int kThreads = 128 * (1 + kConsumers), kWarps = 4 * kConsumers;  // of consumers
  static constexpr int kHalves = kDim / 64;
  static constexpr int kKeyHalf = kKeys * tile::kSwizzledRowBytes;  // bytes of 64 elements of a tile's keys
  static constexpr int kQueryHalf = kQueries * tile::kSwizzledRowBytes;  // and of its queries
  static constexpr int kKeyBytes = kHalves * kKeyHalf;                   // keys, or values
  static constexpr int kQueryBytes = kHalves * kQueryHalf;
  static constexpr int kStages = kDim == 64 ? 4 : 2, kSlots = 2;  // of keys and values; of queries
  static constexpr int kRingBytes = 2 * kStages * kKeyBytes;
  // Weights are summed by the second product, as its 65th column, whose values are ones. Heads of 128 leave no room for these.
  static constexpr bool kSumsByProduct = kDim == 64;
  static constexpr int kOnesAt = kRingBytes + kSlots * kQueryBytes,
                       kOnesBytes = kSumsByProduct ? kKeyHalf : 0;
  static constexpr int kSharedBytes = kOnesAt + kOnesBytes + 1024;  // aligned by hand
  // The producer's threads that fetch queries, beside its first warp.
  static constexpr int kFetchers = 96;
  // Registers of a thread. A CTA has what its launch gave to all of its threads: a warpgroup that asks for more waits for ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 56, kConsumerRegisters = kDim == 64 ? 160 : 224;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);
};

struct PrefillCall {
  Step step;
  Tiling tiling;        // tiles of up to Shape::kQueries, a multiple of 64
  int tiles;            // of queries at most, of all kv heads
  int box_keys;         // positions of a TMA box
  uint32_t box_starts;  // a bit for each 16 positions of a tile of keys where one begins
};

// A tile of queries, as the producer hands it to the consumers.
struct PrefillWork {
  Queries queries;
  int end;            // the query after its last one
  int kv_head, stop;  // stop: there are no more
  Span keys;          // that some of them sees
  int origin;         // where the first tile of keys begins: a multiple of box_keys
};

// A barrier of each stage of the ring stands in an array; kStages is a power of two.
template <class Shape>
struct PrefillShared {
  uint64_t keys_full[Shape::kStages], keys_free[Shape::kStages];
  uint64_t values_full[Shape::kStages], values_free[Shape::kStages];
  uint64_t work_full[Shape::kSlots], work_free[Shape::kSlots];
  PrefillWork work[Shape::kSlots];
  // A bit for each 16 keys that some query should see and whose page is absent.
  uint32_t absent[Shape::kStages];
  TileSearch search;
};

}  // namespace sluice::cuda::attention
