// What a pair of blocks (expert_gemm_bf16_pair.cuh) is made for, its list of tiles and its ring of stages.
#pragma once
#include "backends/cuda/experts/producer_gather.cuh"
#include "backends/cuda/experts/tiles.cuh"
#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda {

// What a kernel is made for. kBlocks: row blocks of a warpgroup; columns as in ExpertTiles, of a block.
template <PairShares kShares_, XSource kRows_, int kBlocks_, int kMost_, int kFiner_, int kLeast_,
          int kPieceBytes_, int kGatherBlocks_ = 12, int kGatherRows_ = 8>
struct ExpertPairs {
  static constexpr bool kSharesX = kShares_ == PairShares::kRowsOfX;
  static constexpr XSource kRows = kRows_;
  static constexpr bool kBoxes = kRows != XSource::kThreads;  // x by the copy engine
  static constexpr bool kGathers = kRows == XSource::kGathered;
  static constexpr bool kWholeBoxes =
      kRows == XSource::kInOrder || kGathers;  // half a tile's rows, or all, in one
  static_assert(kBoxes || !kSharesX, "only the copy engine reaches both blocks");
  static_assert(kRows != XSource::kRowBoxes || kSharesX, "a box a row is too slow for all rows of a block");
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
  static constexpr int kMaps = kWholeBoxes ? kHeights : 1;
  static_assert((kMost - kLeast) % kFiner == 0 && kLeast % 8 == 0 && kFiner % 8 == 0);
  static constexpr int kFills = 1 + (kBoxes ? 1 : 32 * kXWarps);  // arrivals: weights and x
  static constexpr int kStagedBytes = kPieceBytes_;  // of a warpgroup's rows of y on their way out
  // Of a warp that gathers: rows on their way, a chunk of so many k blocks of each, or fewer.
  static constexpr int kGatherRows = kGatherRows_, kGatherBlocks = kGatherBlocks_;
  static constexpr int kGatherUnsaid = 4;  // items that it says at once
  static constexpr int kGatherRowBytes = kGatherBlocks * tile::kSwizzledRowBytes;
  static constexpr int kGatherBytes = kGatherRows * kGatherRowBytes;
  static constexpr int kFetch = kRows == XSource::kInOrder ? 24 : kRows == XSource::kRowBoxes ? 40 : 56;
  // Of what a block gets at its launch, and taking more waits forever.
  static constexpr int kMultiply = (65536 / kThreads / 8 * 8 * (kGroups + 1) - kFetch) / kGroups / 8 * 8;
};

// Offsets in shared memory; the stages come first, aligned to 1024, then pieces of y.
struct PairShared {
  int stages = 0, pieces = 0, gathered = 0, tiles = 0, full = 0, empty = 0, came = 0, begun = 0, scratch = 0,
      before = 0, expert = 0, bytes = 0;
};
template <class C>
constexpr PairShared pair_shared(int experts) {
  constexpr int kStagesMost = 8, kMost = (227 << 10) - 1024, kCuts = C::kGroups * C::kStagedBytes,
                kGathered = C::kGathers ? PairGather::kWarps * C::kGatherBytes : 0,
                kScratch = C::kThreads / 32 * 8, kBegun = 8, kCame = PairGather::kWarps * 8;
  const int lists = (experts + 1) * 4 + experts * 2;
  const int rest =
      kCuts + kGathered + kTilesAhead * 16 + 2 * kStagesMost * 8 + kCame + kBegun + kScratch + lists;
  PairShared s;
  s.stages = std::min(kStagesMost, (kMost - rest) / C::kStageBytes);
  s.pieces = s.stages * C::kStageBytes;
  s.gathered = s.pieces + kCuts;
  s.tiles = s.gathered + kGathered;
  s.full = s.tiles + kTilesAhead * 16;
  s.empty = s.full + kStagesMost * 8;
  s.came = s.empty + kStagesMost * 8;
  s.begun = s.came + kCame;
  s.scratch = s.begun + kBegun;
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
struct PairSchedule {
  // Shared memory: tiles in front of the i-th expert that has rows, and of all, [experts + 1]; and which one that is.
  int32_t* before = nullptr;
  uint16_t* expert = nullptr;
  int listed = 0, row_chunks = 0;  // experts

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
    const int first_rows = tid < p.experts ? p.row_count[tid] : 0;  // which every width asks for
#pragma unroll 1
    for (int width = 0; width < C::kHeights; ++width)
#pragma unroll 1
      for (int base = 0; base < p.experts; base += C::kThreads) {
        const int e = base + tid, rows = base == 0 ? first_rows : e < p.experts ? p.row_count[e] : 0;
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
    listed = so_far;
    __syncthreads();
  }

  __device__ __forceinline__ int tiles() const { return uniform(before[listed]); }

  // The tile `index` < tiles(), as the block `rank` has it. Whole warps call it.
  __device__ __forceinline__ ExpertTile at(const ExpertParameters& p, uint32_t rank, int index) const {
    int low = 0, high = listed;  // before[low] <= index < before[high]
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
  static constexpr int kUnit = C::kFiner;  // rows; divides a block's most
  static_assert(C::kMost % kUnit == 0);
};

// The ring of one block, by addresses of shared memory, and what it knows of the other's.
template <class C>
struct PairRing {
  uint32_t base;  // aligned
  PairShared at;
  uint32_t rank;  // of this block in its pair
  uint32_t peer;  // base of the other block
  tile::RingPlace place;

  __device__ __forceinline__ uint32_t stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  __device__ __forceinline__ uint32_t full() const { return base + at.full + place.stage * 8; }
  // Where the block's `count`-th tile is told.
  __device__ __forceinline__ uint32_t published(int count) const {
    return base + at.tiles + count % kTilesAhead * 16;
  }
  __device__ __forceinline__ void wait_full() const { tile::barrier_wait_by_warp(full(), place.parity); }
  __device__ __forceinline__ void wait_empty() const {
    tile::barrier_wait_by_warp(base + at.empty + place.stage * 8, place.parity ^ 1);
  }
  // Where gathered rows pass through, of warp `part` of those that gather.
  __device__ __forceinline__ PairGatherPlace gather_place(int part) const {
    return {base + at.gathered + static_cast<uint32_t>(part * C::kGatherBytes), base + at.came + part * 8,
            base + at.begun};
  }
  // Those who multiply have read a stage; none of it if `truly` is 0.
  __device__ __forceinline__ void release(uint32_t stage, uint32_t predicate = 1) const {
    const uint32_t empty = at.empty + stage * 8;
    tile::arrive_twice_by_warp(base + empty, peer + empty, predicate);
  }
};

// The first row block of warpgroup `group` of block `rank`. Sharing x, the blocks take turns, so that a short tile is short
// for both.
template <class C>
__device__ __forceinline__ int first_of_group(int first_block, int group, int rank) {
  return first_block + (C::kSharesX ? 2 * group + rank : group) * C::kBlocks;
}

#endif

}  // namespace sluice::cuda
