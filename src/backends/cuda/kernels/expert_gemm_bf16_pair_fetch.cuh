// What a pair of blocks (expert_gemm_bf16_pair.cuh) is made for, its list of tiles, its ring of stages, and the warps that fill
// these: one fetches weights and one x, or three where rows of x are fetched one by one.
#pragma once
#include "backends/cuda/kernels/expert_gemm_tile.cuh"
#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda {

enum class PairShares {
  kRowsOfX,  // the tile's row blocks are halved
  kWeights,  // its rows of x are
};

// What a kernel is made for. kBlocks: row blocks of a warpgroup; columns as in ExpertTiles, of a block.
template <PairShares kShares_, RowsOfX kRows_, int kBlocks_, int kMost_, int kFiner_, int kLeast_,
          int kPieceBytes_>
struct ExpertPairs {
  static constexpr bool kSharesX = kShares_ == PairShares::kRowsOfX;
  static constexpr RowsOfX kRows = kRows_;
  static constexpr bool kBoxes = kRows != RowsOfX::kAnywhere;  // x by the copy engine
  static_assert(kBoxes || !kSharesX, "only the copy engine reaches both blocks");
  static_assert(kRows != RowsOfX::kOfTokens || kSharesX, "a box a row is too slow for all rows of a block");
  static constexpr int kBlocks = kBlocks_, kMost = kMost_, kFiner = kFiner_, kLeast = kLeast_;
  static constexpr int kGroups = 2, kThreads = (kGroups + 1) * 128, kResident = 1;
  static constexpr int kSlots = kGroups * kBlocks;                // row blocks of a block
  static constexpr int kRowBlocks = (kSharesX ? 2 : 1) * kSlots;  // of the pair
  static constexpr int kRowsMost = (kSharesX ? 1 : 2) * kMost;    // rows of x of the pair
  static constexpr int kBlockBytes = static_cast<int>(2 * kFragmentBf16Elements);
  static constexpr int kXBytes = kMost * tile::kSwizzledRowBytes;
  static constexpr int kStageBytes = kXBytes + kSlots * kBlockBytes;
  static_assert(kXBytes % 1024 == 0);
  static constexpr int kHeights = (kMost - kLeast) / kFiner + 1;
  static constexpr int kMaps = kRows == RowsOfX::kInOrder ? kHeights : 1;
  static_assert((kMost - kLeast) % kFiner == 0 && kLeast % 16 == 0 && kFiner % 16 == 0);
  static constexpr int kFills = 1 + (kBoxes ? 1 : 32 * kXWarps);  // arrivals: weights and x
  static constexpr int kPieceBytes = kPieceBytes_;  // of a warpgroup's rows of y on their way out
  static constexpr int kFetch = kRows == RowsOfX::kInOrder ? 24 : kBoxes ? 40 : 56;
  static constexpr int kMultiply = (65536 / 128 - kFetch) / kGroups / 8 * 8;
};

// Offsets in shared memory; the stages come first, aligned to 1024, then pieces of y.
struct PairShared {
  int stages = 0, pieces = 0, tiles = 0, full = 0, empty = 0, scratch = 0, before = 0, expert = 0, bytes = 0;
};
template <class C>
PairShared pair_shared(int experts) {
  constexpr int kStagesMost = 8, kMost = (227 << 10) - 1024, kPieces = C::kGroups * C::kPieceBytes,
                kScratch = C::kThreads / 32 * 8;
  const int lists = (experts + 1) * 4 + experts * 2;
  const int rest = kPieces + kTilesAhead * 16 + 2 * kStagesMost * 8 + kScratch + lists;
  PairShared s;
  s.stages = std::min(kStagesMost, (kMost - rest) / C::kStageBytes);
  s.pieces = s.stages * C::kStageBytes;
  s.tiles = s.pieces + kPieces;
  s.full = s.tiles + kTilesAhead * 16;
  s.empty = s.full + kStagesMost * 8;
  s.scratch = s.empty + kStagesMost * 8;
  s.before = s.scratch + kScratch;
  s.expert = s.before + (experts + 1) * 4;
  s.bytes = 1024 + s.before + lists;
  return s;
}

#ifdef __CUDACC__

// Tiles of all experts. An expert's rows are cut into as few tiles as hold them, of equal height; those of the widest tiles
// come first, so that all pairs have as much of each width, and the last tiles are the narrowest. Tiles of the same weights are
// neighbours.
template <class C>
struct PairList {
  // Shared memory: tiles in front of the i-th expert that has rows, and of all, [experts + 1]; and which one that is.
  int32_t* before = nullptr;
  uint16_t* expert = nullptr;
  int experts = 0, row_chunks = 0;

  static __device__ __forceinline__ int tiles_of(int rows) { return ceil_div(rows, C::kRowsMost); }
  // Of an expert with rows: 0 is the widest; a block has at most so many columns of kFiner less than kMost.
  static __device__ __forceinline__ int narrower(int rows) {
    const int width = ceil_div(ceil_div(rows, tiles_of(rows)), C::kRowsMost / C::kMost);
    return max(0, min(C::kHeights - 1, (C::kMost - width) / C::kFiner));
  }

  // Makes the list; all threads of the block call it. scratch: shared memory, two words for each warp.
  __device__ __forceinline__ void make(const ExpertParameters& p, int32_t* scratch) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    int tiles_so_far = 0, so_far = 0;
#pragma unroll 1
    for (int width = 0; width < C::kHeights; ++width)
#pragma unroll 1
      for (int base = 0; base < p.experts; base += C::kThreads) {
        const int e = base + tid, rows = e < p.experts ? p.row_count[e] : 0;
        const bool mine = rows > 0 && narrower(rows) == width;
        if (__syncthreads_or(mine) == 0) continue;  // also: everybody has read the scratch of before
        const int tiles = mine ? tiles_of(rows) * row_chunks : 0;
        const unsigned these = __ballot_sync(0xffffffffu, mine);
        int up_to = tiles;
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
          const int other = __shfl_up_sync(0xffffffffu, up_to, far);
          up_to += lane >= far ? other : 0;
        }
        if (lane == 31) scratch[2 * warp] = up_to, scratch[2 * warp + 1] = __popc(these);
        __syncthreads();
        int at = so_far + __popc(these & ((1u << lane) - 1)), first = tiles_so_far + up_to - tiles;
#pragma unroll 1
        for (int w = 0; w < C::kThreads / 32; ++w) {
          if (w < warp) first += scratch[2 * w], at += scratch[2 * w + 1];
          tiles_so_far += scratch[2 * w], so_far += scratch[2 * w + 1];
        }
        if (mine) before[at] = first, expert[at] = static_cast<uint16_t>(e);
      }
    if (tid == 0) before[so_far] = tiles_so_far;
    experts = so_far;
    __syncthreads();
  }

  __device__ __forceinline__ int tiles() const { return uniform(before[experts]); }

  // The tile `index` < tiles(), as the block `rank` has it. Whole warps call it.
  __device__ __forceinline__ ExpertTile at(const ExpertParameters& p, uint32_t rank, int index) const {
    int low = 0, high = experts;  // before[low] <= index < before[high]
#pragma unroll 1
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (before[middle] <= index ? low : high) = middle;
    }
    const int e = expert[low], rows = __ldg(p.row_count + e), within = index - before[low];
    const int tiles = tiles_of(rows), units = ceil_div(rows, kUnit), tile = within % tiles;
    const int each = units / tiles, more = units % tiles;  // the first `more` tiles have one unit more
    int first = (tile * each + min(tile, more)) * kUnit;
    int own = min((each + (tile < more)) * kUnit, rows - first);
    if constexpr (!C::kSharesX) {  // the first block has half of the units, or one more
      const int half = min(own, ceil_div(own, 2 * kUnit) * kUnit);
      if (rank > 0) {
        first += half, own -= half;
      } else {
        own = half;
      }
    }
    return {uniform(e), uniform(within / tiles * C::kRowBlocks), uniform(__ldg(p.row_begin + e) + first),
            uniform(own)};
  }

 private:
  static constexpr int kUnit = 16;  // rows; divides a block's most
  static_assert(C::kMost % kUnit == 0);
};

// The ring of one block, by addresses of shared memory, and what it knows of the other's.
template <class C>
struct PairRing {
  uint32_t base;  // aligned
  PairShared at;
  uint32_t rank;       // of this block in its pair
  uint32_t elsewhere;  // base of the other block
  tile::RingPlace place;

  __device__ __forceinline__ uint32_t stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  __device__ __forceinline__ uint32_t full() const { return base + at.full + place.stage * 8; }
  // Where the block's `count`-th tile is told.
  __device__ __forceinline__ uint32_t told(int count) const {
    return base + at.tiles + count % kTilesAhead * 16;
  }
  __device__ __forceinline__ void wait_full() const { tile::barrier_wait_by_warp(full(), place.parity); }
  __device__ __forceinline__ void wait_empty() const {
    tile::barrier_wait_by_warp(base + at.empty + place.stage * 8, place.parity ^ 1);
  }
  // Those who multiply have read a stage; none of it if `truly` is 0.
  __device__ __forceinline__ void give_back(uint32_t stage, uint32_t truly = 1) const {
    const uint32_t empty = at.empty + stage * 8;
    tile::arrive_twice_by_warp(base + empty, elsewhere + empty, truly);
  }
};

// The first row block of warpgroup `group` of block `rank`. Sharing x, the blocks take turns, so that a short tile is short
// for both.
template <class C>
__device__ __forceinline__ int first_of_group(int first_block, int group, int rank) {
  return first_block + (C::kSharesX ? 2 * group + rank : group) * C::kBlocks;
}

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
__device__ __forceinline__ void fetch_pair_boxes(const ExpertParameters& p, const ExpertMaps<C>& x,
                                                 const PairList<C>& list, PairRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles();
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all; index += static_cast<int>(gridDim.x / 2)) {
    const ExpertTile t = list.at(p, ring.rank, index);
    const int height = max(0, ceil_div(t.rows - C::kLeast, C::kFiner));
    const int rows = C::kLeast + height * C::kFiner, half = C::kSharesX ? ring.rank * (rows / 2) : 0;
    const CUtensorMap& map = x.of[height];
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) {
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
