// The warps that fill the stages of a pair of blocks (expert_gemm_bf16_pair.cuh): one fetches weights and one x, or three where
// rows of x are fetched one by one.
#pragma once
#include "backends/cuda/kernels/expert_gemm_bf16_pair_gather.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

template <class C>
__device__ __forceinline__ void fetch_pair_weights(const ExpertParameters& p, const PairList<C>& list,
                                                   PairRing<C> ring) {
  constexpr int kEach = C::kSharesX ? C::kSlots : C::kSlots / 2;  // copies
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int rank = static_cast<int>(ring.rank), all = list.tiles();
  int count = 0;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all;
       index += static_cast<int>(gridDim.x / 2), ++count) {
    const ExpertTile t = list.at(p, ring.rank, index);
    const uint8_t* from[kEach];
    bool there[kEach];
    int own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int block = C::kSharesX ? first_of_group<C>(t.first_block, i / C::kBlocks, rank) + i % C::kBlocks
                                    : t.first_block + rank * kEach + i;
      from[i] = p.w + t.expert * p.w_bytes + static_cast<int64_t>(block) * p.k_blocks * C::kBlockBytes;
      there[i] = block < p.row_blocks;
      own += there[i];
    }
    const int blocks = C::kSharesX ? own : min(C::kSlots, p.row_blocks - t.first_block);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      if (k == 0) {
        if (threadIdx.x % 32 == 0)
          tile::store_shared(ring.told(count), make_uint4(t.expert, t.first_block, t.row, t.rows));
        __syncwarp();
      }
      const uint32_t barrier = ring.full();
      const uint32_t to = ring.stage() + C::kXBytes + (C::kSharesX ? 0 : rank * kEach * C::kBlockBytes);
      tile::barrier_expect_by_warp(barrier, blocks * C::kBlockBytes);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (!there[i]) break;
        if constexpr (C::kSharesX) {
          tile::copy_bulk(to + i * C::kBlockBytes, from[i], C::kBlockBytes, barrier);
        } else {
          tile::copy_bulk_to(3, to + i * C::kBlockBytes, from[i], C::kBlockBytes, barrier);
        }
        from[i] += C::kBlockBytes;
      }
      ring.place.step(stages);
    }
  }
}

template <class C>
__device__ __forceinline__ void fetch_pair_boxes(const ExpertParameters& p, const PairGather& g,
                                                 const ExpertMaps<C>& x, const PairList<C>& list,
                                                 PairRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(), apart = static_cast<int>(gridDim.x / 2);
  int index = static_cast<int>(blockIdx.x / 2);
  ExpertTile next{};
  PairArrived arrived;
  const auto find_next = [&] {
    if (index >= all) return;
    next = list.at(p, ring.rank, index);
    if constexpr (C::kGathers) arrived.ask(p, g, next.expert);
  };
  find_next();
#pragma unroll 1
  while (index < all) {
    const ExpertTile t = next;
    const int height = max(0, ceil_div(t.rows - C::kLeast, C::kFiner));
    const int rows = C::kLeast + height * C::kFiner, half = C::kSharesX ? ring.rank * (rows / 2) : 0;
    const CUtensorMap& map = x.of[height];
    if constexpr (C::kGathers) ring.begin();
    index += apart;
    int chunk = 0, chunk_at = 0;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      if constexpr (C::kGathers)
        if (k == chunk_at) arrived.wait(chunk++), chunk_at += g.chunk_blocks;
      if (k == p.k_blocks - 1) find_next();  // ahead, so that the first stage waits for nothing
      ring.wait_empty();
      const uint32_t full = ring.full();
      const uint32_t to = ring.stage() + half * tile::kSwizzledRowBytes;
      tile::barrier_expect_by_warp(full, static_cast<uint32_t>(rows * tile::kSwizzledRowBytes));
      const int column = k * static_cast<int>(kFragmentWidth);
      if constexpr (C::kSharesX) {
        tile::copy_box_to(3, to, map, column, t.row + half, full);
      } else {
        tile::copy_box(to, map, column, t.row, full);
      }
      ring.place.step(stages);
    }
  }
  if constexpr (C::kGathers) leave_gathered(p, g);
}

// Where they are of tokens: kXWarps warps, since one would ask for the rows of a k block more slowly than the tensor cores
// multiply them. Each block has half of a tile's rows, in eights; its warps take turns.
template <class C>
struct PairTokens {
  static constexpr int kUnit = 8, kUnitBytes = kUnit * tile::kSwizzledRowBytes;
  static constexpr int kOwn = (C::kMost / kUnit / 2 + kXWarps - 1) / kXWarps;  // of a warp
  static constexpr int kEach = (kOwn * kUnit + 31) / 32;                       // rows of a lane
  static_assert(C::kMost % (2 * kUnit) == 0);

  int all, first, asked;  // eights of the tile; the block's own: from `first`, how many
  // Of x: lane l of warp `part` has row l % 8 of the warp's eights l / 8, 4 + l / 8 and so on.
  int rows[kEach];

  // The tile `index` of the list. One read names what the next one reads.
  __device__ __forceinline__ void find(const ExpertParameters& p, const PairList<C>& list, uint32_t rank,
                                       int index, int part) {
    constexpr int kNone = -1;  // no row of the map's tensor: zeros
    const int lane = static_cast<int>(threadIdx.x % 32);
    const ExpertTile t = list.at(p, rank, index);
    all = ceil_div(t.rows, kUnit);
    const int half = ceil_div(all, 2);
    first = rank == 0 ? 0 : half;
    asked = rank == 0 ? half : all - half;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = (first + part + kXWarps * (4 * i + lane / kUnit)) * kUnit + lane % kUnit;
      rows[i] = row < t.rows ? __ldg(p.order + t.row + row) / p.slots : kNone;
    }
  }
};

template <class C>
__device__ __forceinline__ void fetch_pair_tokens(const ExpertParameters& p, const CUtensorMap& x,
                                                  const PairList<C>& list, PairRing<C> ring, int part) {
  using Tokens = PairTokens<C>;
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(), apart = static_cast<int>(gridDim.x / 2);
  int index = static_cast<int>(blockIdx.x / 2);
  Tokens next;
  if (index < all) next.find(p, list, ring.rank, index, part);
#pragma unroll 1
  while (index < all) {
    const Tokens now = next;
    index += apart;
    if (index < all) next.find(p, list, ring.rank, index, part);  // a tile ahead, so that nobody waits for it
    const auto arriving = static_cast<uint32_t>(now.all * Tokens::kUnitBytes);  // of both blocks
    const auto own_at = static_cast<uint32_t>((now.first + part) * Tokens::kUnitBytes);
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      const uint32_t full = ring.full(), to = ring.stage() + own_at;
      if (part == 0) tile::barrier_expect_by_warp(full, arriving);
      const int column = k * static_cast<int>(kFragmentWidth);
#pragma unroll
      for (int own = 0; own < Tokens::kOwn; ++own) {
        if (part + kXWarps * own >= now.asked) break;
#pragma unroll
        for (int i = 0; i < Tokens::kUnit; ++i)
          tile::copy_box_to(3, to + own * kXWarps * Tokens::kUnitBytes + i * tile::kSwizzledRowBytes, x,
                            column, __shfl_sync(0xffffffffu, now.rows[own / 4], own % 4 * Tokens::kUnit + i),
                            full);
      }
      ring.place.step(stages);
    }
  }
}

// Where they are anywhere: kXWarps warps.
template <class C>
__device__ __forceinline__ void fetch_pair_rows(const ExpertParameters& p, const PairList<C>& list,
                                                PairRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<C::kMost, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
  const int all = list.tiles();
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all; index += static_cast<int>(gridDim.x / 2)) {
    rows.begin(p, list.at(p, ring.rank, index));
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
      ring.wait_empty();
      rows.template copy<1>(p, ring.stage(), k);
      arrive_with_x(p, ring.full());
      ring.place.step(stages);
    }
  }
}

#endif

}  // namespace sluice::cuda
