// The rows of few tokens by expert, within the launch that chooses: teams of other CTAs publish each token's ids as words in global
// memory (Queue::grid_words), and one CTA takes them and groups all tokens. The contract is ops/group_rows.h.
//
// A token's ids are four of 16 bits, kNoExpert beyond top_k. Ids differ, so neither of their two words is zero, and zero means not yet
// published. The CTA polls words, not a counter: the path from a choice to its rows is one store and one load. It resets what it has
// taken. A mask for each expert has a bit for each token. The number of bits before a token is its rank, so the order is stable.
//
// The CTA waits for all that choose, so it must not keep them out: only one of a grid does this.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/warp.cuh"

namespace sluice::cuda::tile {

constexpr uint32_t kGroupedTokensMost = 128, kGroupedSlotsMost = 4;

// A kernel parameter.
struct FewGroups {
  uint32_t* words;  // [tokens, 2]: published ids; zero before and after
  int32_t *row_count, *row_begin, *order, *position;
};

// By one thread of the team that chose for `token`. ids: 8-byte aligned.
__device__ __forceinline__ void publish_ids(const FewGroups& g, uint32_t token, const uint16_t* ids) {
  const uint2 two = *reinterpret_cast<const uint2*>(ids);
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(g.words + 2 * token), "r"(two.x),
               "r"(two.y)
               : "memory");
}
__device__ __forceinline__ uint2 take_ids(const FewGroups& g, uint32_t token) {
  uint32_t* const words = g.words + 2 * token;
  uint2 two;
  do {
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(two.x), "=r"(two.y)
                 : "l"(words)
                 : "memory");
  } while (two.x == 0 || two.y == 0);
  words[0] = words[1] = 0;
  return two;
}

// Writes the rows of `tokens` <= kTokens tokens. All threads of a CTA call it, after wait_for_previous(); there are at least as many
// as tokens and as experts. It groups twice: tokens whose ids are made up, while others choose, because code that runs for the first
// time comes from memory.
template <int kExperts, uint32_t kTokens>
__device__ __forceinline__ void group_few(const FewGroups& g, uint32_t tokens, uint32_t top_k) {
  constexpr uint32_t kWarps = kExperts / 32, kMasks = kTokens / 32;
  static_assert(kTokens <= kGroupedTokensMost && kTokens % 32 == 0 && kExperts >= 32);
  __shared__ uint32_t mask[kMasks][kExperts], begin[kExperts], of_warp[kWarps];
  const uint32_t tid = threadIdx.x, lane = tid % 32;
  const bool has_token = tid < tokens, has_expert = tid < kExperts;
  // First row of an expert.
  const auto begin_of = [&](uint32_t expert) {
    uint32_t row = begin[expert];
#pragma unroll
    for (uint32_t w = 0; w + 1 < kWarps; ++w) row += w < expert / 32 ? of_warp[w] : 0;
    return row;
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const bool writes = round > 0;
    if (has_expert) {
#pragma unroll
      for (uint32_t w = 0; w < kMasks; ++w) mask[w][tid] = 0;
    }
    __syncthreads();
    const uint32_t made_up = tid % 8 * kGroupedSlotsMost * 0x10001;
    uint2 ids = {made_up + 0x10000, made_up + 0x30002};
    if (writes && has_token) ids = take_ids(g, tid);
    const uint32_t id[kGroupedSlotsMost] = {ids.x & 0xffff, ids.x >> 16, ids.y & 0xffff, ids.y >> 16};
    if (has_token) {
#pragma unroll
      for (uint32_t k = 0; k < kGroupedSlotsMost; ++k)
        if (k < top_k) atomicOr(&mask[tid / 32][id[k]], 1u << lane);
    }
    __syncthreads();
    uint32_t count = 0;
    if (has_expert) {
#pragma unroll
      for (uint32_t w = 0; w < kMasks; ++w) count += __popc(mask[w][tid]);
      uint32_t up_to = count;
      add_lanes_before(static_cast<int>(lane), up_to);
      begin[tid] = up_to - count;
      if (lane == 31) of_warp[tid / 32] = up_to;
    }
    __syncthreads();
    if (has_expert) {
      const uint32_t row = begin_of(tid);
      if (writes) g.row_count[tid] = static_cast<int>(count), g.row_begin[tid] = static_cast<int>(row);
      if (writes && tid == 0) g.row_begin[kExperts] = static_cast<int>(tokens * top_k);
    }
    if (has_token) {
#pragma unroll
      for (uint32_t k = 0; k < kGroupedSlotsMost; ++k) {
        if (k >= top_k) break;
        uint32_t row = begin_of(id[k]);
#pragma unroll
        for (uint32_t w = 0; w < kMasks; ++w) {
          const uint32_t before = w < tid / 32 ? ~0u : w == tid / 32 ? (1u << lane) - 1 : 0;
          row += __popc(mask[w][id[k]] & before);
        }
        const uint32_t slot = tid * top_k + k;
        if (writes) g.position[slot] = static_cast<int>(row), g.order[row] = static_cast<int>(slot);
      }
    }
    __syncthreads();  // all have read the masks
  }
}

}  // namespace sluice::cuda::tile
