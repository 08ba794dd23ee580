// The producer warpgroup of prefill.cuh: finds tiles of queries, and loads their queries, keys and values.
// e4m3 keys and values arrive in a ring of their own, and the warps that load queries convert them to bf16.
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
  using Shape = PrefillShape<kDim, C>;
  using Memory = PrefillMemory<Shape, C>;
  // ring: the stages of keys and values, the slots of queries, then the stages of e4m3 keys and values.
  __device__ __forceinline__ PrefillProducer(const PrefillCall& call, Memory& shared, uint32_t ring)
      : call_(call), shared_(shared), ring_(ring) {}

  // Called by all threads of the producer warpgroup.
  __device__ __forceinline__ void run(const CUtensorMap& k_map, const CUtensorMap& v_map) {
    const Step& p = call_.step;
    const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
    const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
    tile::RingPlace place, wide, slot;
    for (int round = 0;; ++round) {
      // Tiles with more keys come first. To balance this, the CTA with the first tile of a round gets the last tile of the next round.
      const int at = round * ctas + (round % 2 ? ctas - 1 - cta : cta);
      PrefillWork work = {};
      work.kv_head = at % p.kv_heads;
      const bool found = at < call_.tiles && find(at / p.kv_heads, work);
      work.stop = found ? 0 : 1;
      shared_.queries.ring().acquire_by_warp(slot);
      if (threadIdx.x == 0) shared_.work[slot.stage] = work;
      if (warp > 0 && found) fetch_queries(work, slot.stage);
      if (threadIdx.x == 0 || warp > 0) tile::barrier_arrive(shared_.queries.ring().full_of(slot.stage));
      __syncwarp();
      if (!found) return;
      slot.step(Shape::kSlots);
      if (warp == 0) {
        load(k_map, v_map, work, place);
      } else if constexpr (Memory::kNarrow) {
        widen(work, place, wide);
      }
    }
  }

 private:
  // Finds the tile of queries with this index, among the tiles of one kv head. Returns false if there are fewer tiles.
  __device__ __forceinline__ bool find(int index, PrefillWork& work) {
    const Step& p = call_.step;
    const int tile = call_.tiling.tile;
    // Usually the tile belongs to the sequence that was found last, and no search is needed.
    if (!shared_.search.tiles.sees(index)) {
      const bool found = find_tile<128>(p, call_.tiling, index, shared_.search);
      tile::sync_threads<128>(1);
      if (!found) return false;
    }
    Queries& of = work.queries;
    of = shared_.search.found;
    // The last tile of a sequence attends to the most keys, so it is first.
    of.first = ((of.count - 1) / tile - (index - shared_.search.tiles.first)) * tile;
    work.end = min(of.first + tile, of.count);
    work.keys = SeenBy(p, of, of.first, work.end - 1).some;
    work.origin = work.keys.first / call_.box_keys * call_.box_keys;
    return true;
  }

  // Loads the queries of a tile, with zeros past the last query, up to a multiple of 64. Called by all warps but the first.
  __device__ __forceinline__ void fetch_queries(const PrefillWork& work, uint32_t slot) {
    const Step& p = call_.step;
    const Queries& of = work.queries;
    constexpr int kChunks = kDim / 8;  // 16-byte chunks per row
    const auto* q = static_cast<const __nv_bfloat16*>(p.q);
    const uint32_t to = ring_ + Shape::kRingBytes + slot * Shape::kQueryBytes;
    const int rows = (work.end - of.first + 63) / 64 * 64;
    for (int i = static_cast<int>(threadIdx.x) - 32; i < rows * kChunks; i += Shape::kFetchers) {
      const int row = i / kChunks, chunk = i % kChunks, query = of.first + row;
      const bool there = query < work.end;
      const __nv_bfloat16* from =
          q + (there ? of.place(p, query, work.kv_head, kDim, p.q_stride) + 8 * chunk : 0);
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

  // Loads all keys and values to which some query of the tile attends.
  __device__ __forceinline__ void load(const CUtensorMap& k_map, const CUtensorMap& v_map,
                                       const PrefillWork& work, tile::RingPlace& place) {
    const Step& p = call_.step;
    // Lane i handles positions 16 i to 16 i + 15 of the tile, which are in one page. A box is one or several such groups.
    const int lane = static_cast<int>(threadIdx.x) % 32, box = call_.box_keys;
    const int origin = tile::uniform(work.origin), end = tile::uniform(work.keys.end);
    const int64_t table = static_cast<int64_t>(work.queries.sequence) * p.pages_per_seq;
    // at: the first position of a tile of keys.
    const auto wanted = [&](int at) {
      const int j = at + lane * 16 / box * box;
      return lane < Shape::kKeys / 16 && j < end;
    };
    const auto page_of = [&](int at) {
      return wanted(at) ? p.page_table[table + (at + lane * 16) / p.page_size] : -1;
    };
    int page = page_of(origin);
    auto& copies = shared_.copies();
    for (int at = origin; at < end; at += Shape::kKeys) {
      const int next = page_of(at + Shape::kKeys);
      const bool there = page >= 0 && page < p.pages;
      const uint32_t absent = __ballot_sync(0xffffffffu, wanted(at) && !there);
      // Rows outside the tensor of the map arrive as zeros.
      const int row = there
                          ? (page * p.kv_heads + work.kv_head) * p.page_size + (at + lane * 16) % p.page_size
                          : p.pages * p.kv_heads * p.page_size;
      // A value that the compiler knows to be uniform; otherwise each box takes a dozen more moves.
      const auto s = static_cast<uint32_t>(tile::uniform(static_cast<int>(place.stage)));
      const uint32_t keys = ring_ + Memory::kCopiesAt + s * 2 * Memory::kCopyBytes;
      int rows[Shape::kKeys / 16];
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 16; ++i) rows[i] = __shfl_sync(0xffffffffu, row, i);
      copies.keys.ring().acquire_by_warp({s, place.parity});
      if (lane == 0) copies.absent[s] = absent;
      __syncwarp();
      copy(k_map, keys, rows, copies.keys.ring().full_of(s));
      copies.values.ring().acquire_by_warp({s, place.parity});
      copy(v_map, keys + Memory::kCopyBytes, rows, copies.values.ring().full_of(s));
      place.step(Memory::kCopyStages);
      page = next;
    }
  }
  // rows: the row of the cache for every 16 positions. Boxes of 16 are issued without branches: a
  // loop with a branch and a shuffle per box took 160 clocks per box, and the consumers had to wait.
  __device__ __forceinline__ void copy(const CUtensorMap& map, uint32_t to,
                                       const int (&rows)[Shape::kKeys / 16], uint32_t barrier) {
    tile::barrier_expect_by_warp(barrier, Memory::kCopyBytes);
    if (call_.box_keys == 16) {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 16; ++i) copy_box(map, to, 16 * i, rows[i], barrier);
    } else {
#pragma unroll
      for (int i = 0; i < Shape::kKeys / 16; ++i)
        if (call_.box_starts >> i & 1) copy_box(map, to, 16 * i, rows[i], barrier);
    }
  }
  // at: offset in the tile, in positions.
  static __device__ __forceinline__ void copy_box(const CUtensorMap& map, uint32_t to, int at, int row,
                                                  uint32_t barrier) {
    if constexpr (Memory::kNarrow) {
      constexpr int kPositionsARow = tile::kSwizzledRowBytes / kDim;
      tile::copy_box(to + at * kDim, map, 0, row / kPositionsARow, barrier);
    } else {
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        tile::copy_box(to + half * Shape::kKeyHalf + at * tile::kSwizzledRowBytes, map, 64 * half, row,
                       barrier);
    }
  }

  // Converts what load() has loaded to bf16. from: a stage of load(). to: a stage of the consumers. Called by all warps but the first.
  __device__ __forceinline__ void widen(const PrefillWork& work, tile::RingPlace& from, tile::RingPlace& to) {
    auto& copies = shared_.copies();
    for (int at = work.origin; at < work.keys.end; at += Shape::kKeys) {
      const uint32_t narrow = ring_ + Memory::kCopiesAt + from.stage * 2 * Memory::kCopyBytes,
                     keys = ring_ + to.stage * 2 * Shape::kKeyBytes;
      copies.keys.ring().wait_by_warp(from);
      shared_.keys.ring().acquire_by_warp(to);
      if (threadIdx.x == 32) shared_.absent[to.stage] = copies.absent[from.stage];
      widen_tile<Shape>(keys, narrow);
      publish(copies.keys.ring().empty_of(from.stage), shared_.keys.ring().full_of(to.stage));
      copies.values.ring().wait_by_warp(from);
      shared_.values.ring().acquire_by_warp(to);
      widen_tile<Shape>(keys + Shape::kKeyBytes, narrow + Memory::kCopyBytes);
      publish(copies.values.ring().empty_of(from.stage), shared_.values.ring().full_of(to.stage));
      from.step(Memory::kCopyStages), to.step(Shape::kStages);
    }
  }
  static __device__ __forceinline__ void publish(uint32_t read, uint32_t written) {
    tile::barrier_arrive(read);
    tile::fence_for_async();
    tile::barrier_arrive(written);
  }

  const PrefillCall& call_;
  Memory& shared_;
  const uint32_t ring_;
};

}  // namespace sluice::cuda::attention
