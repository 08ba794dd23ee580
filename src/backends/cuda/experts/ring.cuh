// The ring of stages of expert_gemm_tile.cuh, and how its warps are told their tiles.
#pragma once
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/producer_gather.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda {

// Tiles that one warp has begun to fetch and another not begun to multiply: never more than stages.
constexpr int kTilesAhead = 16;

// Offsets in shared memory; the stages come first, aligned to 1024.
struct TileShared {
  int stages = 0, rows = 0, gathered = 0, tiles = 0, published = 0, full = 0, empty = 0, came = 0, begun = 0,
      before = 0, bytes = 0;
};

#ifdef __CUDACC__

// The stages, by addresses of shared memory.
template <class C>
struct TileRing {
  static constexpr int kBlocksMost = 1 << 15;  // row blocks of an expert
  // Of a tile whose place in the list is told too, and of places.
  static constexpr uint32_t kRowsMost = 1 << 8, kIndexMost = UINT32_MAX / kRowsMost;
  static_assert(!C::kGathers || C::kMost < kRowsMost);
  uint32_t base;  // aligned
  TileShared at;
  tile::RingPlace place;
  // Where two blocks share rows of x: which of them this is, and the other's base.
  uint32_t rank = 0, peer = 0;

  __device__ __forceinline__ uint32_t stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  __device__ __forceinline__ uint32_t full(uint32_t stage) const { return base + at.full + stage * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return base + at.empty + stage * 8; }
  // The block's `count`-th tile is told to all warps by the one that finds it; one without rows ends the list.
  __device__ __forceinline__ void publish(int count, const ExpertTile& t) const {
    tile::store_and_arrive_by_warp(base + at.tiles + count % kTilesAhead * 16, words_of(t),
                                   base + at.published + count % kTilesAhead * 8);
  }
  // The other block's, where a warp waits for it by expect_told() and told().
  __device__ __forceinline__ void publish_to_peer(int count, const ExpertTile& t) const {
    if (threadIdx.x % 32 == 0)
      tile::store_remote(peer + at.tiles + count % kTilesAhead * 16, words_of(t),
                         peer + at.published + count % kTilesAhead * 8);
    __syncwarp();
  }
  __device__ __forceinline__ void expect_published(int count) const {
    tile::barrier_expect_by_warp(base + at.published + count % kTilesAhead * 8, 16);
  }
  __device__ __forceinline__ ExpertTile published(int count) const {
    tile::barrier_wait_by_warp(base + at.published + count % kTilesAhead * 8, count / kTilesAhead % 2);
    const uint4 t = tile::load_shared(base + at.tiles + count % kTilesAhead * 16);
    const int blocks = uniform(static_cast<int>(t.y));
    const uint32_t rows = static_cast<uint32_t>(uniform(static_cast<int>(t.w)));
    return {uniform(static_cast<int>(t.x)), blocks % kBlocksMost,
            uniform(static_cast<int>(t.z)), static_cast<int>(C::kGathers ? rows % kRowsMost : rows),
            blocks / kBlocksMost,           static_cast<int>(C::kGathers ? rows / kRowsMost : 0)};
  }
  __device__ __forceinline__ void wait_full() const {
    tile::barrier_wait_by_warp(full(place.stage), place.parity);
  }
  __device__ __forceinline__ void wait_empty() const {
    tile::barrier_wait_by_warp(empty(place.stage), place.parity ^ 1);
  }
  // Gives a stage back that has been read, by each lane of those that multiply; not if `truly` is 0. Codes are read by loads and
  // rows of y come through the last stage, for which each lane answers itself (tile::arrive_by_lane).
  __device__ __forceinline__ void release(uint32_t stage, uint32_t predicate = 1) const {
    tile::arrive_by_lane(empty(stage), predicate);
    if constexpr (C::kBlocksOfTile > 1) tile::arrive_at_peer_by_warp(peer + at.empty + stage * 8, predicate);
  }
  // Where gathered rows pass through, of warp `part` of those that gather.
  __device__ __forceinline__ PairGatherPlace gather_place(int part) const {
    return {base + at.gathered + static_cast<uint32_t>(part * C::kGatherBytes),
            base + at.came + static_cast<uint32_t>(part * 8), base + at.begun};
  }
  // The stages of a tile by a warp that has no part in it.
  __device__ __forceinline__ void pass(int k_blocks) {
#pragma unroll 1
    for (int k = 0; k < k_blocks; k += C::kSteps) {
      wait_full();
      release(place.stage);
      place.step(static_cast<uint32_t>(at.stages));
    }
  }

 private:
  static __device__ __forceinline__ uint4 words_of(const ExpertTile& t) {
    return make_uint4(
        static_cast<uint32_t>(t.expert),
        static_cast<uint32_t>(t.first_block) + static_cast<uint32_t>(t.end_block) * kBlocksMost,
        static_cast<uint32_t>(t.row),
        static_cast<uint32_t>(t.rows) + (C::kGathers ? static_cast<uint32_t>(t.index) * kRowsMost : 0));
  }
};

#endif

}  // namespace sluice::cuda
