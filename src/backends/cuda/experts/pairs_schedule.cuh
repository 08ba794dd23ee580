// What the CTA-pair kernel (pairs.cuh) is compiled for, its list of tiles and its ring of stages.
#pragma once
#include "backends/cuda/experts/producer_gather.cuh"
#include "backends/cuda/experts/tiles.cuh"
#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda {

// What a kernel is compiled for. kBlocks: row blocks of a warpgroup. tile_n as in ExpertTiles, of one CTA.
template <PairShares kShares_, XSource kRows_, int kBlocks_, int kTileN_, int kStepN_, int kLeastN_,
          int kStagedBytes_, int kGatherBlocks_ = 12, int kGatherRows_ = 8>
struct ExpertPairs {
  static constexpr bool kSharesX = kShares_ == PairShares::kRowsOfX;
  static constexpr XSource kRows = kRows_;
  static constexpr bool kBoxes = kRows != XSource::kThreads;  // x arrives by TMA
  static constexpr bool kGathers = kRows == XSource::kGathered;
  static constexpr bool kWholeBoxes =
      kRows == XSource::kInOrder || kGathers;  // one TMA box holds all rows, or half
  static_assert(kBoxes || !kSharesX, "only TMA reaches both CTAs");
  static_assert(kRows != XSource::kRowBoxes || kSharesX, "a TMA box a row is too slow for all rows of a CTA");
  static constexpr int kBlocks = kBlocks_, kTileN = kTileN_, kStepN = kStepN_, kLeastN = kLeastN_;
  static constexpr int kGroups = 2, kThreads = (kGroups + 1) * 128, kResident = 1;
  static constexpr int kRowBlocks = kGroups * kBlocks;                 // of a CTA
  static constexpr int kTileBlocks = (kSharesX ? 2 : 1) * kRowBlocks;  // of the pair
  static constexpr int kRowsMost = (kSharesX ? 1 : 2) * kTileN;        // rows of x of the pair
  static constexpr int kBlockBytes = static_cast<int>(2 * kFragmentBf16Elements);
  static constexpr int kXBytes = kTileN * tile::kSwizzledRowBytes;
  static constexpr int kStageBytes = kXBytes + kRowBlocks * kBlockBytes;
  static_assert(kXBytes % 1024 == 0);
  static constexpr int kHeights = (kTileN - kLeastN) / kStepN + 1;
  static constexpr int kMaps = kWholeBoxes ? kHeights : 1;
  static_assert((kTileN - kLeastN) % kStepN == 0 && kLeastN % 8 == 0 && kStepN % 8 == 0);
  static constexpr int kFullArrivals = 1 + (kBoxes ? 1 : 32 * kXWarps);  // weights and x
  static constexpr int kStagedBytes = kStagedBytes_;                     // staging of a warpgroup's rows of y
  // For a gather warp: rows in flight, and k blocks of each, at most.
  static constexpr int kGatherRows = kGatherRows_, kGatherBlocks = kGatherBlocks_;
  static constexpr int kGatherBatch = 4;  // items that it publishes together
  static constexpr int kGatherRowBytes = kGatherBlocks * tile::kSwizzledRowBytes;
  static constexpr int kGatherBytes = kGatherRows * kGatherRowBytes;
  static constexpr int kProducerRegisters = kRows == XSource::kInOrder    ? 24
                                            : kRows == XSource::kRowBoxes ? 40
                                                                          : 56;
  // Of the registers that a CTA gets at its launch; taking more would wait forever.
  static constexpr int kConsumerRegisters =
      (65536 / kThreads / 8 * 8 * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8;
};

// Offsets in shared memory. Stages come first, aligned to 1024, then the staging of y.
struct PairShared {
  int stages = 0, staging = 0, gathered = 0, tiles = 0, full = 0, empty = 0, gather_full = 0, waves_begun = 0,
      scratch = 0, before = 0, expert = 0, bytes = 0;
};
template <class C>
constexpr PairShared pair_shared(int experts) {
  constexpr int kStagesMost = 8, kMost = (227 << 10) - 1024, kStaging = C::kGroups * C::kStagedBytes,
                kGathered = C::kGathers ? PairGather::kWarps * C::kGatherBytes : 0,
                kScratch = C::kThreads / 32 * 8, kWavesBegun = 8, kGatherFull = PairGather::kWarps * 8;
  const int lists = (experts + 1) * 4 + experts * 2;
  const int rest = kStaging + kGathered + kTilesAhead * 16 + 2 * kStagesMost * 8 + kGatherFull + kWavesBegun +
                   kScratch + lists;
  PairShared s;
  s.stages = std::min(kStagesMost, (kMost - rest) / C::kStageBytes);
  s.staging = s.stages * C::kStageBytes;
  s.gathered = s.staging + kStaging;
  s.tiles = s.gathered + kGathered;
  s.full = s.tiles + kTilesAhead * 16;
  s.empty = s.full + kStagesMost * 8;
  s.gather_full = s.empty + kStagesMost * 8;
  s.waves_begun = s.gather_full + kGatherFull;
  s.scratch = s.waves_begun + kWavesBegun;
  s.before = s.scratch + kScratch;
  s.expert = s.before + (experts + 1) * 4;
  s.bytes = 1024 + s.before + lists;
  return s;
}

#ifdef __CUDACC__

// Tiles of all experts. An expert's rows are divided into as few tiles as hold them, of equal height. Experts
// with the widest tiles come first, so that all pairs get equally many of each width, and the last tiles are
// the narrowest. Tiles of the same weights are neighbours.
template <class C>
struct PairSchedule {
  // Shared memory: tiles before the i-th expert that has rows, and of all, [experts + 1]; and which expert
  // that is.
  int32_t* before = nullptr;
  uint16_t* expert = nullptr;
  int listed = 0, m_tiles = 0;  // experts; tiles along the weight rows

  static __device__ __forceinline__ int tiles_of(int rows) { return ceil_div(rows, C::kRowsMost); }
  // The height class of an expert with rows: 0 is the widest. A CTA's N is at most this many kStepN less than
  // kTileN.
  static __device__ __forceinline__ int height_class(int rows) {
    const int width = ceil_div(ceil_div(rows, tiles_of(rows)), C::kRowsMost / C::kTileN);
    return max(0, min(C::kHeights - 1, (C::kTileN - width) / C::kStepN));
  }

  // Makes the list; all threads of the CTA call it. scratch: shared memory, two words a warp.
  __device__ __forceinline__ void make(const ExpertParameters& p, int32_t* scratch) {
    const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32;
    int tiles_so_far = 0, so_far = 0;
    const int first_rows = tid < p.experts ? p.row_count[tid] : 0;  // which every width needs
#pragma unroll 1
    for (int width = 0; width < C::kHeights; ++width)
#pragma unroll 1
      for (int base = 0; base < p.experts; base += C::kThreads) {
        const int e = base + tid, rows = base == 0 ? first_rows : e < p.experts ? p.row_count[e] : 0;
        const bool mine = rows > 0 && height_class(rows) == width;
        if (__syncthreads_or(mine) == 0) continue;  // all threads have also read the previous scratch
        const int tiles = mine ? tiles_of(rows) * m_tiles : 0;
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

  // The tile `index` < tiles(), as CTA `rank` has it. Whole warps call it.
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
    if constexpr (!C::kSharesX) {  // the first CTA has half of the units, or one more
      const int half = min(own, ceil_div(own, 2 * kUnit) * kUnit);
      if (rank > 0) {
        first += half, own -= half;
      } else {
        own = half;
      }
    }
    return {uniform(e), uniform(within / tiles * C::kTileBlocks), uniform(__ldg(p.row_begin + e) + first),
            uniform(own)};
  }

 private:
  static constexpr int kUnit = C::kStepN;  // rows; divides a CTA's kTileN
  static_assert(C::kTileN % kUnit == 0);
};

// The ring of one CTA, by addresses in shared memory, and what it knows of its peer's.
template <class C>
struct PairRing {
  uint32_t base;  // aligned to 1024
  PairShared at;
  uint32_t rank;  // of this CTA in its pair
  uint32_t peer;  // base of the peer CTA
  tile::RingPlace place;

  __device__ __forceinline__ uint32_t stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  __device__ __forceinline__ uint32_t full() const { return base + at.full + place.stage * 8; }
  // Where the CTA's `count`-th tile is published.
  __device__ __forceinline__ uint32_t tile_at(int count) const {
    return base + at.tiles + count % kTilesAhead * 16;
  }
  __device__ __forceinline__ void wait_full() const { tile::barrier_wait_by_warp(full(), place.parity); }
  __device__ __forceinline__ void wait_empty() const {
    tile::barrier_wait_by_warp(base + at.empty + place.stage * 8, place.parity ^ 1);
  }
  // The staging of gather warp `warp`.
  __device__ __forceinline__ PairGatherPlace gather_place(int warp) const {
    return {base + at.gathered + static_cast<uint32_t>(warp * C::kGatherBytes),
            base + at.gather_full + warp * 8, base + at.waves_begun};
  }
  // A consumer warp releases a stage, in both CTAs; not if `predicate` is 0.
  __device__ __forceinline__ void release(uint32_t stage, uint32_t predicate = 1) const {
    const uint32_t empty = at.empty + stage * 8;
    tile::arrive_twice_by_warp(base + empty, peer + empty, predicate);
  }
};

// The first row block of warpgroup `group` in CTA `rank`. If the pair shares x, the CTAs' row blocks
// alternate, so that a short tile is short for both.
template <class C>
__device__ __forceinline__ int first_of_group(int first_block, int group, int rank) {
  return first_block + (C::kSharesX ? 2 * group + rank : group) * C::kBlocks;
}

#endif

}  // namespace sluice::cuda
