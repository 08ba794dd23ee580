// Shared by the producer and the consumers of prefill.cuh: sizes, parameters and shared memory.
#pragma once
#include <type_traits>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda::attention {

// C: element type of the caches.
template <int kDim, class C>
struct PrefillShape {
  static constexpr int kConsumers = kDim == 64 ? 3 : 2, kQueries = 64 * kConsumers;
  static constexpr bool kNarrow = std::is_same_v<C, E4M3>;
  static constexpr int kKeys = kDim == 64 ? 96
                               : kNarrow  ? 64
                                          : 112;  // keys per tile (docs/lab/cuda-attention.md)
  // Threads of the CTA; number of consumer warps.
  static constexpr int kThreads = 128 * (1 + kConsumers), kWarps = 4 * kConsumers;
  static constexpr int kHalves = kDim / 64;
  static constexpr int kKeyHalf = kKeys * tile::kSwizzledRowBytes;  // bytes of 64 elements of a tile's keys
  // Bytes of 64 elements of a tile's queries.
  static constexpr int kQueryHalf = kQueries * tile::kSwizzledRowBytes;
  static constexpr int kKeyBytes = kHalves * kKeyHalf;  // of a stage's keys; of its values
  static constexpr int kQueryBytes = kHalves * kQueryHalf;
  // Stages of keys and values; slots for tiles of queries.
  static constexpr int kStages = kDim == 64 ? 4 : 2, kSlots = 2;
  static constexpr int kRingBytes = 2 * kStages * kKeyBytes;
  // The second product sums the weights in a 65th column, whose values are ones. With head_dim 128 there are no registers for that.
  static constexpr bool kSumsByProduct = kDim == 64;
  static constexpr int kOnesAt = kRingBytes + kSlots * kQueryBytes,
                       kOnesBytes = kSumsByProduct ? kKeyHalf : 0;
  static constexpr int kSharedBytes = kOnesAt + kOnesBytes + 1024;  // includes the bytes for alignment
  // The producer threads that load queries: all but those of the first warp.
  static constexpr int kFetchers = 96;
  // Registers per thread at launch, which together are all that the CTA has. A warpgroup that requests more than are left waits forever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 56, kConsumerRegisters = kDim == 64 ? 160 : 224;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);
};

struct PrefillCall {
  Step step;
  Tiling tiling;        // tiles of up to Shape::kQueries queries, a multiple of 64
  int tiles;            // maximum number of tiles of queries, over all kv heads
  int box_keys;         // positions per TMA box
  uint32_t box_starts;  // bit i: a box begins at position 16 i of a tile of keys
};

// A tile of queries, which the producer passes to the consumers.
struct PrefillWork {
  Queries queries;
  int end;            // one past its last query
  int kv_head, stop;  // stop: there are no more tiles
  Span keys;          // keys to which some of its queries attend
  int origin;         // start of the first tile of keys; a multiple of box_keys
};

// Barriers and data of the two rings. kStages must be a power of two.
template <class Shape>
struct PrefillShared {
  tile::RingBarriers<Shape::kStages> keys, values;
  tile::RingBarriers<Shape::kSlots> queries;
  PrefillWork work[Shape::kSlots];
  // Bit i: keys 16 i to 16 i + 15 are in an absent page, and some query attends to them.
  uint32_t absent[Shape::kStages];
  TileSearch search;
};

}  // namespace sluice::cuda::attention
