// The kernel of the expert GEMMs in bf16 for many rows an expert: pairs of blocks, a cluster of two SMs, walk a list of tiles
// that both halve, and what both of them multiply comes from the L2 once (docs/notes/cuda-bf16-experts.md).
//
// Either the pair shares rows of x, and each block has row blocks of its own, or it shares weights, and each has columns of its
// own. Of what is shared each block fetches a half into both. So a stage is empty when both blocks have read it: those who
// multiply say so to both. Two warpgroups multiply, one warp fetches weights and one x, as in expert_gemm_tile.cuh.
#pragma once
#include "backends/cuda/expert_finish_rows.cuh"
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
  static constexpr bool kSharesX = kShares_ == PairShares::kRowsOfX, kInOrder = kRows_ == RowsOfX::kInOrder;
  static_assert(kInOrder || !kSharesX, "only the copy engine reaches both blocks");
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
  static_assert((kMost - kLeast) % kFiner == 0 && kLeast % 16 == 0 && kFiner % 16 == 0);
  static constexpr int kFills = 1 + (kInOrder ? 1 : 32 * kXWarps);  // arrivals: weights and x
  static constexpr int kPieceBytes = kPieceBytes_;  // of a warpgroup's rows of y on their way out
  static constexpr int kFetch = kInOrder ? 24 : 56, kMultiply = kInOrder ? 240 : 224;
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

// Adds up a tile, N >= its rows, and gives its stages back.
template <int N, class C>
__device__ __forceinline__ void multiply_pair(float (&d)[C::kBlocks][C::kMost / 2], const ExpertParameters& p,
                                              PairRing<C>& ring, int group) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; ++k) {
    ring.wait_full();
    if constexpr (!C::kInOrder) tile::fence_for_async();
    // Uniform, so that descriptors are made outside of the lanes' registers.
    const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
    const uint64_t x = tile::describe_tile(stage);
    const uint64_t w = tile::describe_tile(stage + C::kXBytes + group * C::kBlocks * C::kBlockBytes);
    tile::fence_operands();
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
        tile::multiply<N>(reinterpret_cast<float(&)[N / 2]>(d[b]),
                          w + b * (C::kBlockBytes / tile::kDescribed) + j * tile::kNext16,
                          x + j * tile::kNext16, 1);
    tile::commit_group();
    tile::wait_groups<1>();
    ring.give_back(before, k > 0);  // what read the stage in front is done
    before = ring.place.stage;
    ring.place.step(stages);
  }
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) tile::hold(d[b]);
  ring.give_back(before);
}

// multiply_pair of the fewest columns that the tile's rows fit in.
template <int N, class C>
__device__ __forceinline__ void multiply_columns(float (&d)[C::kBlocks][C::kMost / 2],
                                                 const ExpertParameters& p, int rows, PairRing<C>& ring,
                                                 int group) {
  if constexpr (N > C::kLeast)
    if (rows <= N - C::kFiner) return multiply_columns<N - C::kFiner, C>(d, p, rows, ring, group);
  multiply_pair<N>(d, p, ring, group);
}

// Multiplies one tile, of which this warpgroup has something, and writes its rows of y.
template <class C, bool kGated>
__device__ __forceinline__ void multiply_pair_tile(const ExpertParameters& p, const ExpertTile& t,
                                                   int first_block, PairRing<C>& ring) {
  const int all_warps = uniform(static_cast<int>(threadIdx.x / 32)), warp = all_warps % 4,
            group = all_warps / 4 - 1;
  float d[C::kBlocks][C::kMost / 2];
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
  multiply_columns<C::kMost>(d, p, t.rows, ring, group);
  RowsFinish<kGated> finish[C::kBlocks];
  read_rows(finish, p, t.expert, first_block, warp);
  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint32_t staging = ring.base + ring.at.pieces + static_cast<uint32_t>(group * C::kPieceBytes);
  const int blocks = min(C::kBlocks, p.row_blocks - first_block);
  if (!finishes_by_pieces<kGated>(p, act, first_block + blocks - 1)) {
    static_assert(C::kPieceBytes >= StraightFinish<kGated>::kStagingBytes);
    if (finishes_straight<kGated>(p, act)) {
      finish_tile_straight<C::kMost, C::kBlocks, kGated>(d, p, act, t, first_block, finish,
                                                         StraightFinish<kGated>(staging, group));
    } else {
      finish_tile<C::kMost, C::kBlocks, kGated>(d, p, act, t, first_block, finish);
    }
    return;
  }
  const PieceOfRows piece{staging, warp, 1 + group};
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    if (b >= blocks) break;
    const auto write = [&]<Activation kAct>() {
      finish_by_pieces<C::kMost, kAct, C::kPieceBytes>(d[b], p, t, first_block + b, finish[b].bias, piece);
    };
    if constexpr (kGated) {
      write.template operator()<Activation::kSwiGlu>();
    } else if (act.which == Activation::kRelu2) {
      write.template operator()<Activation::kRelu2>();
    } else {
      write.template operator()<Activation::kIdentity>();
    }
  }
}

// A tile of which this warpgroup has nothing.
template <class C>
__device__ __forceinline__ void pass_tile(const ExpertParameters& p, PairRing<C>& ring) {
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; ++k) {
    ring.wait_full();
    ring.give_back(ring.place.stage);
    ring.place.step(static_cast<uint32_t>(ring.at.stages));
  }
}

template <class C, bool kGated>
__device__ __forceinline__ void multiply_pairs(const ExpertParameters& p, const PairList<C>& list,
                                               PairRing<C> ring) {
  const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
  const int all = list.tiles();
  int count = 0;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x / 2); index < all;
       index += static_cast<int>(gridDim.x / 2), ++count) {
    ring.wait_full();
    const uint4 told = tile::load_shared(ring.told(count));
    const ExpertTile t{uniform(static_cast<int>(told.x)), uniform(static_cast<int>(told.y)),
                       uniform(static_cast<int>(told.z)), uniform(static_cast<int>(told.w))};
    const int first_block = first_of_group<C>(t.first_block, group, static_cast<int>(ring.rank));
    if (t.rows > 0 && first_block < p.row_blocks) {
      multiply_pair_tile<C, kGated>(p, t, first_block, ring);
    } else {
      pass_tile(p, ring);
    }
  }
}

template <class C, bool kGated>
__global__ void __launch_bounds__(C::kThreads, 1)
    expert_pairs(const __grid_constant__ ExpertParameters p, const __grid_constant__ PairShared at,
                 const __grid_constant__ ExpertMaps<C> x) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* base = dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024;
  const auto rank = static_cast<uint32_t>(uniform(static_cast<int>(tile::cluster_rank())));
  PairRing<C> ring{tile::shared_address(base), at, rank,
                   tile::remote_address(tile::shared_address(base), rank ^ 1)};
  if (threadIdx.x < static_cast<unsigned>(at.stages)) {
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.full) + threadIdx.x, C::kFills);
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.empty) + threadIdx.x, 2 * C::kGroups * 4);
    tile::barrier_visible();
  }
  __syncwarp();
  tile::cluster_arrive();
  if (C::kInOrder && threadIdx.x < C::kHeights) tile::prefetch_map(x.of[threadIdx.x]);
  if (!p.settled) tile::wait_for_previous();
  PairList<C> list{reinterpret_cast<int32_t*>(base + at.before),
                   reinterpret_cast<uint16_t*>(base + at.expert), 0, ceil_div(p.row_blocks, C::kRowBlocks)};
  list.make(p, reinterpret_cast<int32_t*>(base + at.scratch));
  tile::cluster_wait();  // the other block runs, and its barriers are there
  // Uniform, or the compiler expects lanes apart in all that follows: each copy would take three times as many instructions.
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < 4) {
    tile::keep_registers<C::kFetch>();
    if (warp == 0) {
      fetch_pair_weights(p, list, ring);
    } else if (!C::kInOrder || warp == 1) {
      tile::wait_for_previous();
      if constexpr (C::kInOrder) {
        fetch_pair_boxes(p, x, list, ring);
      } else {
        fetch_pair_rows(p, list, ring);
      }
    }
  } else {
    tile::wait_for_previous();
    tile::release_next();
    tile::take_registers<C::kMultiply>();
    multiply_pairs<C, kGated>(p, list, ring);
  }
  // Nobody leaves while the other block may still arrive or copy here.
  __syncwarp();
  tile::cluster_publish();
  tile::cluster_wait();
}

// x of the arguments lies in order, at multiples of 16 bytes.
template <class C>
Status launch_pairs(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a,
                    Stream stream) {
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  ExpertMaps<C> x{};
  for (int i = 0; C::kInOrder && i < C::kHeights; ++i)
    SLUICE_TRY(tile::map_rows(x.of[i], a.x, (C::kLeast + i * C::kFiner) / (C::kSharesX ? 2 : 1)));
  const PairShared at = pair_shared<C>(static_cast<int>(p.experts));
  const Launch how{.grid = {static_cast<unsigned>(sms / 2 * 2), 1, 1},
                   .block = {C::kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(at.bytes),
                   .cluster = {2, 1, 1}};
  const auto kernel = is_gated(p.act) ? expert_pairs<C, true> : expert_pairs<C, false>;
  return launch(name, kernel, how, stream, expert_parameters(p, a), at, x);
}

#endif

}  // namespace sluice::cuda
