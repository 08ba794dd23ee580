// The producer warpgroup of prefill.cuh: it finds tiles of queries, and fetches them, their keys and their values. Those of e4m3 arrive
// in a ring of their own, and the warps that fetch queries make bf16 of them.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/prefill_staging.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::attention {

template <int kDim, class C>
class PrefillProducer {
 public:
  using Shape = PrefillShape<kDim>;
  using Memory = PrefillMemory<Shape, C>;
  // ring: stages of keys and values, slots of queries, then stages of keys and values of e4m3.
  __device__ __forceinline__ PrefillProducer(const PrefillCall& call, Memory& shared, uint32_t ring)
      : call_(call), shared_(shared), ring_(ring) {}

  // All threads of the producer's warpgroup.
  __device__ __forceinline__ void run(const CUtensorMap& k_map, const CUtensorMap& v_map) {
    const Step& p = call_.step;
    const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
    tile::RingPlace place, wide, slot;
    // The largest tiles come first, and whoever is done takes the next.
    for (int at = static_cast<int>(blockIdx.x);; at = next()) {
      const int kv_head = at % p.kv_heads;
      const bool found = at < call_.tiles && find_tile<128>(p, call_.tiling, at / p.kv_heads, shared_.search);
      Queries of = shared_.search.found;
      // The last tile of a sequence sees most: it goes first.
      const int tile = call_.tiling.tile;
      of.first = (of.count - 1) / tile * tile - of.first;
      const int end = min(of.first + tile, of.count);
      tile::sync_threads<128>(1);
      tile::barrier_wait_by_warp(&shared_.work_free[slot.stage], slot.parity ^ 1);
      if (threadIdx.x == 0) shared_.work[slot.stage] = {of, end, kv_head, found ? 0 : 1};
      if (warp > 0 && found) fetch_queries(of, end, kv_head, slot.stage);
      if (threadIdx.x == 0 || warp > 0) tile::barrier_arrive(&shared_.work_full[slot.stage]);
      __syncwarp();
      if (threadIdx.x == kTaker) found ? take() : leave();
      if (!found) return;
      slot.step(Shape::kSlots);
      if (warp == 0) {
        load(k_map, v_map, of, end, kv_head, place);
      } else if constexpr (Memory::kNarrow) {
        widen(of, end, place, wide);
      }
    }
  }

 private:
  // Not of the warp that asks for keys.
  static constexpr unsigned kTaker = 32;
  __device__ __forceinline__ void take() const {
    shared_.next = static_cast<int>(gridDim.x + atomicAdd(call_.words, 1));
  }
  // What take() has got, after the tile's keys have been asked for.
  __device__ __forceinline__ int next() const {
    tile::sync_threads<128>(1);
    return shared_.next;
  }
  // By then this CTA has got all that it took.
  __device__ __forceinline__ void leave() const {
    if (atomicInc(call_.words + 1, gridDim.x - 1) == gridDim.x - 1) call_.words[0] = 0;
  }

  // The tile's queries as rows of kDim elements, zeros beyond the last one of a warpgroup. By all warps but the first.
  __device__ __forceinline__ void fetch_queries(const Queries& of, int end, int kv_head, uint32_t slot) {
    const Step& p = call_.step;
    constexpr int kChunks = kDim / 8;  // of 16 bytes, in a row
    const auto* q = static_cast<const __nv_bfloat16*>(p.q);
    const uint32_t to = ring_ + Shape::kRingBytes + slot * Shape::kQueryBytes;
    const int rows = (end - of.first + 63) / 64 * 64;
    for (int i = static_cast<int>(threadIdx.x) - 32; i < rows * kChunks; i += Shape::kFetchers) {
      const int row = i / kChunks, chunk = i % kChunks, query = of.first + row;
      const bool there = query < end;
      const __nv_bfloat16* from = q + (there ? of.place(p, query, kv_head, kDim, p.q_stride) + 8 * chunk : 0);
      const uint32_t place = to + chunk / 8 * Shape::kQueryHalf + tile::swizzled(row, chunk % 8 * 16);
      if (p.q_wide) {
        tile::copy_16(place, from, there);
      } else {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair)
          tile::store_shared_word(place + 4 * pair, there ? two_of(p, from + 2 * pair) : 0);
      }
    }
    tile::end_copies();
    tile::wait_copies<0>();
    tile::fence_for_async();
  }

  // All keys that some query of the tile sees.
  __device__ __forceinline__ void load(const CUtensorMap& k_map, const CUtensorMap& v_map, const Queries& of,
                                       int end_query, int kv_head, tile::RingPlace& place) {
    const Step& p = call_.step;
    // A lane for each 16 positions of the tile, which lie in one page; a box is some of them.
    const int lane = static_cast<int>(threadIdx.x) % 32, box = call_.box_keys;
    const SeenBy seen(p, of, of.first, end_query - 1);
    const int first = seen.some.first / Shape::kKeys, end = (seen.some.end + Shape::kKeys - 1) / Shape::kKeys;
    const int64_t table = static_cast<int64_t>(of.sequence) * p.pages_per_seq;
    const auto wanted = [&](int t) {
      const int j = t * Shape::kKeys + lane * 16 / box * box;
      return t < end && lane < Shape::kKeys / 16 && j < seen.some.end && j + box > seen.some.first;
    };
    const auto page_of = [&](int t) {
      return wanted(t) ? p.page_table[table + (t * Shape::kKeys + lane * 16) / p.page_size] : -1;
    };
    int page = page_of(first);
    auto& copies = shared_.copies();
    for (int t = first; t < end; ++t) {
      const int next = page_of(t + 1);
      const bool there = page >= 0 && page < p.pages;
      const uint32_t absent = __ballot_sync(0xffffffffu, wanted(t) && !there);
      // Rows beyond the cache arrive as zeros.
      const int row =
          there ? (page * p.kv_heads + kv_head) * p.page_size + (t * Shape::kKeys + lane * 16) % p.page_size
                : p.pages * p.kv_heads * p.page_size;
      const uint32_t s = place.stage, keys = ring_ + Memory::kCopiesAt + s * 2 * Memory::kCopyBytes;
      tile::barrier_wait_by_warp(&copies.keys_free[s], place.parity ^ 1);
      if (lane == 0) copies.absent[s] = absent;
      __syncwarp();
      copy(k_map, keys, row, tile::shared_address(&copies.keys_full[s]));
      tile::barrier_wait_by_warp(&copies.values_free[s], place.parity ^ 1);
      copy(v_map, keys + Memory::kCopyBytes, row, tile::shared_address(&copies.values_full[s]));
      place.step(Memory::kCopyStages);
      page = next;
    }
  }
  __device__ __forceinline__ void copy(const CUtensorMap& map, uint32_t to, int row_of_lane,
                                       uint32_t barrier) {
    tile::barrier_expect_by_warp(barrier, Memory::kCopyBytes);
    for (int j = 0; j < Shape::kKeys; j += call_.box_keys) {
      const int row = __shfl_sync(0xffffffffu, row_of_lane, j / 16);
      if constexpr (Memory::kNarrow) {
        constexpr int kPositionsARow = tile::kSwizzledRowBytes / kDim;
        tile::copy_box(to + j * kDim, map, 0, row / kPositionsARow, barrier);
      } else {
#pragma unroll
        for (int half = 0; half < Shape::kHalves; ++half)
          tile::copy_box(to + half * Shape::kKeyHalf + j * tile::kSwizzledRowBytes, map, 64 * half, row,
                         barrier);
      }
    }
  }

  // What load() asks for becomes bf16, by all warps but the first. from, to: its stages, and those of the consumers.
  __device__ __forceinline__ void widen(const Queries& of, int end_query, tile::RingPlace& from,
                                        tile::RingPlace& to) {
    const Span seen = SeenBy(call_.step, of, of.first, end_query - 1).some;
    const int first = seen.first / Shape::kKeys, end = (seen.end + Shape::kKeys - 1) / Shape::kKeys;
    auto& copies = shared_.copies();
    for (int t = first; t < end; ++t) {
      const uint32_t narrow = ring_ + Memory::kCopiesAt + from.stage * 2 * Memory::kCopyBytes,
                     keys = ring_ + to.stage * 2 * Shape::kKeyBytes;
      tile::barrier_wait_by_warp(&copies.keys_full[from.stage], from.parity);
      tile::barrier_wait_by_warp(&shared_.keys_free[to.stage], to.parity ^ 1);
      if (threadIdx.x == 32) shared_.absent[to.stage] = copies.absent[from.stage];
      widen_tile<Shape>(keys, narrow);
      publish(&copies.keys_free[from.stage], &shared_.keys_full[to.stage]);
      tile::barrier_wait_by_warp(&copies.values_full[from.stage], from.parity);
      tile::barrier_wait_by_warp(&shared_.values_free[to.stage], to.parity ^ 1);
      widen_tile<Shape>(keys + Shape::kKeyBytes, narrow + Memory::kCopyBytes);
      publish(&copies.values_free[from.stage], &shared_.values_full[to.stage]);
      from.step(Memory::kCopyStages), to.step(Shape::kStages);
    }
  }
  static __device__ __forceinline__ void publish(uint64_t* read, uint64_t* written) {
    tile::barrier_arrive(read);
    tile::fence_for_async();
    tile::barrier_arrive(written);
  }

  const PrefillCall& call_;
  Memory& shared_;
  const uint32_t ring_;
};

}  // namespace sluice::cuda::attention
