// The ring of stages of tiles.cuh, and the queue in which a producer warp passes tiles to the other warps.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/tile/producer_gather.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/ring.cuh"
#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda {

// Entries in the queue of tiles: the maximum number of tiles by which a loading warp can be ahead of a multiplying warp.
// A tile uses one stage or more, so this must be at least the number of stages (8 at most).
constexpr int kTilesAhead = 16;

// Offsets in shared memory. Stages come first, aligned to 1024.
struct TileShared {
  int stages = 0, epilogue = 0, gathered = 0, tiles = 0, published = 0, full = 0, empty = 0, gather_full = 0,
      waves_begun = 0, before = 0, bytes = 0;
};

#ifdef __CUDACC__

// The stages, by addresses in shared memory.
template <class C>
struct TileRing {
  static constexpr int kBlocksMax = 1 << 15;  // row blocks of an expert
  // If a tile is passed with its `index`, it has fewer rows than this, because both share a word.
  static constexpr uint32_t kRowsLimit = C::kTileN < 256 ? 1 << 8 : 1 << 9;
  uint32_t base;  // aligned to 1024
  TileShared at;
  tile::RingPlace place;
  // For CTA pairs: this CTA's rank, and the address of the peer CTA's `base`.
  uint32_t rank = 0, peer = 0;

  __device__ __forceinline__ tile::Ring barriers() const { return {base + at.full, base + at.empty}; }
  // Initializes the barriers. Called by all threads of the CTA; the caller then makes them visible. shared: generic pointer to `base`.
  __device__ __forceinline__ void init(uint8_t* shared) const {
    if (threadIdx.x < static_cast<unsigned>(at.stages))
      barriers().init(threadIdx.x, C::kFullArrivals, C::kEmptyArrivals);
    if (threadIdx.x < kTilesAhead)
      tile::barrier_init(reinterpret_cast<uint64_t*>(shared + at.published) + threadIdx.x, 1);
  }
  __device__ __forceinline__ uint32_t stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  // The full barrier of the current stage.
  __device__ __forceinline__ uint32_t full() const { return barriers().full_of(place.stage); }
  // True if tile t marks the end of the list. In a pair that shares
  // weights, a CTA may have no rows of a tile, so `rows` may be 0.
  static __device__ __forceinline__ bool ends(const ExpertTile& t) {
    return C::kSharesWeights ? t.end_block == 0 : t.rows == 0;
  }
  // Writes the CTA's tile number `count` to the queue, for all its warps.
  __device__ __forceinline__ void publish(int count, const ExpertTile& t) const {
    tile::store_and_arrive_by_warp(base + at.tiles + count % kTilesAhead * 16, words_of(t),
                                   base + at.published + count % kTilesAhead * 8);
  }
  // Writes the tile to the queue of the peer CTA, where a warp calls expect_tile() and wait_tile().
  __device__ __forceinline__ void publish_to_peer(int count, const ExpertTile& t) const {
    if (threadIdx.x % 32 == 0)
      tile::store_remote(peer + at.tiles + count % kTilesAhead * 16, words_of(t),
                         peer + at.published + count % kTilesAhead * 8);
    __syncwarp();
  }
  __device__ __forceinline__ void expect_tile(int count) const {
    tile::barrier_expect_by_warp(base + at.published + count % kTilesAhead * 8, 16);
  }
  __device__ __forceinline__ ExpertTile wait_tile(int count) const {
    tile::barrier_wait_by_warp(base + at.published + count % kTilesAhead * 8, count / kTilesAhead % 2);
    const uint4 t = tile::load_shared(base + at.tiles + count % kTilesAhead * 16);
    const int blocks = uniform(static_cast<int>(t.y));
    const uint32_t rows = static_cast<uint32_t>(uniform(static_cast<int>(t.w)));
    return {uniform(static_cast<int>(t.x)),
            blocks % kBlocksMax,
            uniform(static_cast<int>(t.z)),
            static_cast<int>(C::kKeepsIndex ? rows % kRowsLimit : rows),
            blocks / kBlocksMax,
            static_cast<int>(C::kKeepsIndex ? rows / kRowsLimit : 0)};
  }
  __device__ __forceinline__ void wait_full() const { barriers().wait_by_warp(place); }
  __device__ __forceinline__ void wait_empty() const { barriers().acquire_by_warp(place); }
  __device__ __forceinline__ uint32_t expect(uint32_t bytes) const {
    return barriers().expect_by_warp(place.stage, bytes);
  }
  // Consumer warps call this when they have read a stage. It releases the stage in both
  // CTAs of a pair, unless `predicate` is 0. If lanes load codes themselves or the last
  // stage is used to stage y, every lane arrives for itself (tile::arrive_by_lane).
  __device__ __forceinline__ void release(uint32_t stage, uint32_t predicate = 1) const {
    if constexpr (C::kReleasedByLanes) {
      barriers().release(stage, predicate);
      if constexpr (C::kPair) tile::arrive_at_peer_by_warp(peer_barriers().empty_of(stage), predicate);
    } else {
      tile::arrive_twice_by_warp(barriers().empty_of(stage), peer_barriers().empty_of(stage), predicate);
    }
  }
  // Shared memory of gather warp `warp`.
  __device__ __forceinline__ PairGatherPlace gather_place(int warp) const {
    return {base + at.gathered + static_cast<uint32_t>(warp * C::kGatherBytes),
            base + at.gather_full + static_cast<uint32_t>(warp * 8), base + at.waves_begun};
  }
  // With Weights::kStaggers, the second of two warpgroups starts when the first has issued the products of kLead stages, and
  // stays that far behind: while one is in its epilogue, the other multiplies. `leads` is true in the first warpgroup until it
  // lets the second start.
  static constexpr uint32_t kLead = 2;
  static constexpr int kStart = 5;  // named barrier; epilogues use 1 to 3
  bool leads = false;
  __device__ __forceinline__ void wait_for_leader() const { tile::sync_threads<256>(kStart); }
  __device__ __forceinline__ void let_start() {
    tile::arrive_threads<256>(kStart);
    leads = false;
  }
  // A consumer's step to the next stage.
  __device__ __forceinline__ void step() {
    place.step(static_cast<uint32_t>(at.stages));
    if constexpr (C::Weights::kStaggers)
      if (leads && place.stage == min(kLead, static_cast<uint32_t>(at.stages) - 1)) let_start();
  }
  // Waits for and releases the stages of a tile in which this warpgroup has no work.
  __device__ __forceinline__ void skip(int k_blocks) {
#pragma unroll 1
    for (int k = 0; k < k_blocks; k += C::kSteps) {
      wait_full();
      release(place.stage);
      step();
    }
  }

 private:
  __device__ __forceinline__ tile::Ring peer_barriers() const { return {peer + at.full, peer + at.empty}; }
  static __device__ __forceinline__ uint4 words_of(const ExpertTile& t) {
    return make_uint4(
        static_cast<uint32_t>(t.expert),
        static_cast<uint32_t>(t.first_block) + static_cast<uint32_t>(t.end_block) * kBlocksMax,
        static_cast<uint32_t>(t.row),
        static_cast<uint32_t>(t.rows) + (C::kKeepsIndex ? static_cast<uint32_t>(t.index) * kRowsLimit : 0));
  }
};

#endif

}  // namespace sluice::cuda
