// The producer warpgroup of prefill.cuh: it finds tiles of queries, and fetches them, their keys and their values.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/prefill_shape.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::attention {

template <int kDim>
class PrefillProducer {
 public:
  using Shape = PrefillShape<kDim>;
  // ring: stages of keys and values, then slots of queries.
  __device__ __forceinline__ PrefillProducer(const PrefillCall& call, PrefillShared<Shape>& shared,
                                             uint32_t ring)
      : call_(call), shared_(shared), ring_(ring) {}

  // All threads of the producer's warpgroup.
  __device__ __forceinline__ void run(const CUtensorMap& k_map, const CUtensorMap& v_map) {
    const Step& p = call_.step;
    const int warp = tile::uniform(static_cast<int>(threadIdx.x) / 32);
    const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
    tile::RingPlace place, slot;
    for (int round = 0;; ++round) {
      // Tiles become smaller from round to round, and within one: who had the largest has the smallest next.
      const int at = round * ctas + (round % 2 ? ctas - 1 - cta : cta);
      const int kv_head = at % p.kv_heads;
      const bool found = at < call_.tiles && find_tile<128>(p, call_.tiling, at / p.kv_heads, shared_.search);
      Queries of = shared_.search.found;
      // The last tile of a sequence sees most: it goes first.
      of.first = (of.count - 1) / Shape::kQueries * Shape::kQueries - of.first;
      tile::sync_threads<128>(1);
      tile::barrier_wait_by_warp(&shared_.work_free[slot.stage], slot.parity ^ 1);
      if (threadIdx.x == 0) shared_.work[slot.stage] = {of, kv_head, found ? 0 : 1};
      if (warp > 0 && found) fetch_queries(of, kv_head, slot.stage);
      if (threadIdx.x == 0 || warp > 0) tile::barrier_arrive(&shared_.work_full[slot.stage]);
      __syncwarp();
      if (!found) return;
      slot.step(Shape::kSlots);
      if (warp == 0) load(k_map, v_map, of, kv_head, place);
    }
  }

 private:
  // The tile's queries as rows of kDim elements, zeros beyond the last one. By all warps but the first.
  __device__ __forceinline__ void fetch_queries(const Queries& of, int kv_head, uint32_t slot) {
    const Step& p = call_.step;
    constexpr int kChunks = kDim / 8;  // of 16 bytes, in a row
    const auto* q = static_cast<const __nv_bfloat16*>(p.q);
    const uint32_t to = ring_ + Shape::kRingBytes + slot * Shape::kQueryBytes;
    for (int i = static_cast<int>(threadIdx.x) - 32; i < Shape::kQueries * kChunks; i += Shape::kFetchers) {
      const int row = i / kChunks, chunk = i % kChunks, query = of.first + row;
      const bool there = query < of.count;
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
                                       int kv_head, tile::RingPlace& place) {
    const Step& p = call_.step;
    // A lane for each 16 positions of the tile, which lie in one page; a box is some of them.
    const int lane = static_cast<int>(threadIdx.x) % 32, box = call_.box_keys;
    const SeenBy seen(p, of, of.first, min(of.first + Shape::kQueries, of.count) - 1);
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
    for (int t = first; t < end; ++t) {
      const int next = page_of(t + 1);
      const bool there = page >= 0 && page < p.pages;
      const uint32_t absent = __ballot_sync(0xffffffffu, wanted(t) && !there);
      // Rows beyond the cache arrive as zeros.
      const int row =
          there ? (page * p.kv_heads + kv_head) * p.page_size + (t * Shape::kKeys + lane * 16) % p.page_size
                : p.pages * p.kv_heads * p.page_size;
      const uint32_t s = place.stage, keys = ring_ + s * 2 * Shape::kKeyBytes;
      tile::barrier_wait_by_warp(&shared_.keys_free[s], place.parity ^ 1);
      if (lane == 0) shared_.absent[s] = absent;
      __syncwarp();
      copy(k_map, keys, row, tile::shared_address(&shared_.keys_full[s]));
      tile::barrier_wait_by_warp(&shared_.values_free[s], place.parity ^ 1);
      copy(v_map, keys + Shape::kKeyBytes, row, tile::shared_address(&shared_.values_full[s]));
      place.step(Shape::kStages);
      page = next;
    }
  }
  __device__ __forceinline__ void copy(const CUtensorMap& map, uint32_t to, int row_of_lane,
                                       uint32_t barrier) {
    tile::barrier_expect_by_warp(barrier, Shape::kKeyBytes);
    for (int j = 0; j < Shape::kKeys; j += call_.box_keys) {
      const int row = __shfl_sync(0xffffffffu, row_of_lane, j / 16);
#pragma unroll
      for (int half = 0; half < Shape::kHalves; ++half)
        tile::copy_box(to + half * Shape::kKeyHalf + j * tile::kSwizzledRowBytes, map, 64 * half, row,
                       barrier);
    }
  }

  const PrefillCall& call_;
  PrefillShared<Shape>& shared_;
  const uint32_t ring_;
};

}  // namespace sluice::cuda::attention
