// Attention of many queries: FlashAttention with wgmma over pages.
//
// A CTA processes tiles of 192 queries (128 if head_dim is 128) of one sequence and one kv head. A query is one token of one head:
// with 8 heads per kv head a tile has 24 tokens. Each consumer warpgroup has 64 queries. If a step has too few queries for all SMs, tiles are smaller and
// some warpgroups idle. The producer's first warp loads 96 keys and their values at a time by TMA (112 if head_dim is 128; 64
// for head_dim 128 in e4m3), one box per page or part of a page. All threads of the producer find the next tile of queries,
// and its other warps load those queries while consumers still compute. These warps also convert e4m3 keys and values to bf16
// (prefill_staging.cuh). The first tile of keys begins at the box with the first key that some query attends to.
//
// Scores and weights stay in registers. If head_dim is 64, the second product also sums the weights,
// through an additional column of values that are all ones. QK^T of a tile of keys overlaps with PV of the
// previous tile and with the exponentials of the softmax, so the weights P of the previous tile are kept
// in registers. If some query of a warpgroup does not attend to all keys of a tile (at the
// diagonal, at the edge of a window, absent pages), the tile's values are checked, because zero times NaN
// is NaN. If a value of a key that some query attends to is not finite, PV is computed without tensor cores.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/prefill_consumer.cuh"
#include "backends/cuda/attention/prefill_producer.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/registers.cuh"

namespace sluice::cuda::attention {

// At most one CTA per SM; a CTA loops over tiles of queries.
// C: element type of the caches.
template <int kDim, class C>
__global__ void __launch_bounds__(PrefillShape<kDim, C>::kThreads, 1)
    attention_prefill(const __grid_constant__ PrefillCall call, const __grid_constant__ CUtensorMap k_map,
                      const __grid_constant__ CUtensorMap v_map) {
  using Shape = PrefillShape<kDim, C>;
  extern __shared__ uint8_t dynamic[];
  using Memory = PrefillMemory<Shape, C>;
  __shared__ Memory shared;
  static_assert(Memory::kSharedBytes + sizeof(Memory) <= 227 << 10, "what a CTA may have");
  const uint32_t raw = tile::shared_address(dynamic), ring = raw + (-raw & 1023u);
  if (threadIdx.x == 0) {
    shared.search.tiles = {0, 0};
    shared.keys.init(Memory::kFillers, Shape::kWarps);
    shared.values.init(Memory::kFillers, Shape::kWarps);
    if constexpr (Memory::kNarrow) {
      shared.copies().keys.init(1, Shape::kFetchers);
      shared.copies().values.init(1, Shape::kFetchers);
    }
    shared.queries.init(1 + Shape::kFetchers, Shape::kWarps);
    tile::barrier_visible();
    tile::prefetch_map(k_map), tile::prefetch_map(v_map);
  }
  if constexpr (Shape::kSumsByProduct) {
    constexpr uint32_t kOnes = 0x3f803f80;
    for (int at = static_cast<int>(threadIdx.x) * 16; at < Shape::kOnesBytes; at += Shape::kThreads * 16)
      tile::store_shared(ring + Shape::kOnesAt + at, make_uint4(kOnes, kOnes, kOnes, kOnes));
    tile::fence_for_async();
  }
  __syncthreads();
  tile::wait_for_previous();
  // The decode kernel computes the other sequences of the step,
  // concurrently with this kernel (tile/dependent.cuh, rule 4).
  tile::release_next();
  if (threadIdx.x < 128) {
    tile::keep_registers<Shape::kProducerRegisters>();
    PrefillProducer<kDim, C>(call, shared, ring).run(k_map, v_map);
  } else {
    tile::take_registers<Shape::kConsumerRegisters>();
    PrefillConsumer<kDim, C>(call, shared, ring).run();
  }
}

}  // namespace sluice::cuda::attention
