// The tile kernel of the expert GEMMs. A tile is tile_m weight rows x up to kTileN
// rows of x. A persistent grid of CTAs processes tiles one after the other.
//
// Consumers: one to three warpgroups, each with one or two row blocks of 64 weight
// rows. x is swizzled in shared memory. wgmma reads x and bf16 weights from there;
// coded weights (the formats of codes.cuh) are decoded in registers to the type of x, bf16 or FP8. Warpgroups do
// not wait for each other and may be as many stages apart as the ring has.
//
// Producers: the warps of one more warpgroup (producer.cuh). If rows of x may be at any address, one warp
// copies weights with bulk copies, and three warps copy rows of x, 16 bytes per thread. If rows of x are in y's
// order and aligned to 16 bytes, one warp copies a tile's rows as one TMA box, and three warps copy weights.
//
// CTA pairs: a cluster of two CTAs on two SMs. An operand that both multiply comes from L2 once: each CTA copies
// half of it to both. If the pair shares rows of x, each CTA has half of a tile's row blocks. The rows come as
// one TMA box if they are in y's order or if two more warps gather them into that order (producer_gather.cuh),
// otherwise as one box per row (producer_boxes.cuh). If the pair shares weights, each CTA has half of a tile's
// rows of x. A stage is empty once both CTAs have read it, so consumer warps release it in both.
#pragma once
#include <algorithm>
#include <type_traits>

#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/tile/consumer.cuh"
#include "backends/cuda/experts/tile/epilogue.cuh"
#include "backends/cuda/experts/tile/epilogue_columns.cuh"
#include "backends/cuda/experts/tile/epilogue_rows.cuh"
#include "backends/cuda/experts/tile/producer.cuh"
#include "backends/cuda/experts/tile/ring.cuh"
#include "backends/cuda/experts/tile/schedule.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/registers.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {

// True if a bf16 block in the layout `fragments` has the swizzle that the wgmma descriptor expects.
constexpr bool bf16_blocks_are_swizzled() {
  for (int64_t row = 0; row < kFragmentRows; ++row)
    for (int64_t k = 0; k < kFragmentWidth; ++k)
      if (2 * fragment_bf16_index({1, 1}, {0, row}, k) !=
          tile::swizzled(static_cast<uint32_t>(row), static_cast<uint32_t>(2 * k)))
        return false;
  return true;
}
static_assert(bf16_blocks_are_swizzled());

// The constants of a compiled kernel, from its entry in config.h.
template <class Weights_, TileKernel kOf, int kResident_ = 1>
struct ExpertTiles {
  using Weights = Weights_;
  static constexpr bool kDecodes = Weights::kDecodes;  // weights are codes that threads decode in registers
  static constexpr XSource kRows = kOf.x;
  static constexpr bool kSharesX = kOf.shares == PairShares::kRowsOfX,
                        kSharesWeights = kOf.shares == PairShares::kWeights, kPair = kOf.ctas() == 2;
  static constexpr int kCtas = kOf.ctas();              // per tile
  static constexpr int kGroups = kOf.groups(kDecodes);  // consumer warpgroups
  static constexpr int kBlocks =
      kOf.tile_m / (static_cast<int>(kFragmentRows) * kGroups);  // row blocks per warpgroup
  // tile_n, the N of wgmma. There is code for N = kTileN, kTileN - kStepN, and so
  // on down to kNMin. ptxas serializes wgmma in a kernel with five such loops
  // that each have an epilogue, or with fewer loops that use more registers.
  static constexpr int kTileN = kOf.n_max, kStepN = kOf.n_step, kNMin = kOf.n_min;
  static constexpr int kRowsMax = kOf.rows_of_x();  // rows of x per tile
  static constexpr int kSteps = kOf.k_steps;        // k blocks per stage
  static constexpr int kResident = kResident_;      // CTAs per SM
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr bool kGathers = kRows == XSource::kGathered;
  static constexpr bool kKeepsIndex = kGathers;  // a tile is queued with its `index`
  static constexpr bool kBothProducts = false;   // one launch computes the tiles of both products
  static constexpr bool kWholeBoxes =
      kRows == XSource::kInOrder || kGathers;  // one TMA box holds all rows of the tile, or half of them
  static constexpr bool kBoxes = kRows != XSource::kThreads;  // x arrives by TMA
  static_assert(kPair || (!kGathers && kRows != XSource::kRowBoxes));
  static_assert(!kSharesX || kBoxes, "only TMA reaches both CTAs");
  static_assert(!kSharesWeights || kRows != XSource::kRowBoxes,
                "a TMA box a row is too slow for all rows of a CTA");
  // Row blocks of a CTA; of a tile. Then the layout of a stage: x, weights, scales.
  static constexpr int kRowBlocks = kGroups * kBlocks, kTileBlocks = (kSharesX ? 2 : 1) * kRowBlocks;
  static constexpr int kCuts = kDecodes ? kGroups : 1;  // maximum number of parts of a tail tile
  static constexpr int kBlockBytes = Weights::kCodeBytes, kScaleBytes = Weights::kScaleBytes;
  static_assert(!kSharesWeights || kScaleBytes == 0, "scales are copied to one CTA");
  // Rows of x are copied 128 bytes at a time: kXBytes for the tile, kRowsOfStage times per stage.
  static constexpr int kBlocksOfRow = Weights::kBlocksOfRow, kRowsOfStage = kSteps / kBlocksOfRow;
  static_assert(kSteps % kBlocksOfRow == 0);
  static constexpr int kXBytes = kTileN * tile::kSwizzledRowBytes;
  static constexpr int kWeights = kRowsOfStage * kXBytes;  // offset in the stage
  static constexpr int kScales = kWeights + kRowBlocks * kSteps * kBlockBytes;
  static constexpr int kStageBytes = (kScales + kRowBlocks * kSteps * kScaleBytes + 1023) / 1024 * 1024;
  // wgmma reads tiles with the swizzle of swizzle.cuh, so they start at multiples of 1024.
  static_assert(kXBytes % 1024 == 0 && (kDecodes || kBlockBytes % 1024 == 0));
  // Bytes to stage a warpgroup's rows of y. bf16 pairs have shared memory for this, so one epilogue handles
  // all tile_n, and stages are read only by wgmma. The other kernels (0) stage y in their last stage.
  static constexpr int kStagedBytes = kDecodes || !kPair ? 0 : kBlocks == 1 && !kGathers ? 8192 : 4096;
  static constexpr bool kReleasedByLanes = kStagedBytes == 0;
  // Shared memory of the epilogues of all warpgroups: the staging above, or the factors and biases of a tile's rows (EpilogueRowsAhead).
  // If x is FP8, the scales of a tile's rows of x follow, for each warpgroup (EpilogueColumns).
  static constexpr bool kFp8X = kBlocksOfRow > 1;
  static constexpr int kColumnScales = kRowBlocks * 512;
  static constexpr int kEpilogueBytes =
      kDecodes ? kColumnScales + (kFp8X ? kGroups * kTileN * 4 : 0) : kGroups * kStagedBytes;
  // Possible heights of TMA boxes: a tile loads as many rows as its wgmma multiplies.
  static constexpr int kHeights = (kTileN - kNMin) / kStepN + 1, kMaps = kWholeBoxes ? kHeights : 1;
  static_assert((kTileN - kNMin) % kStepN == 0 && kNMin % 8 == 0 && kStepN % 8 == 0);
  static_assert(!kSharesWeights || kTileN % kStepN == 0);  // half_of() takes whole steps
  // Warps that divide the copies of weights; the arrivals, besides the transaction bytes, that complete a stage's full barrier.
  static constexpr int kWeightWarps = kWholeBoxes && !kPair ? 3 : 1,
                       kFullArrivals = kWeightWarps + (kBoxes ? 1 : 32 * kXWarps);
  // Arrivals that complete a stage's empty barrier (TileRing::release).
  static constexpr int kEmptyArrivals = kGroups * (kReleasedByLanes ? 128 + (kPair ? 4 : 0) : 8);
  // For a gather warp: rows in flight, maximum k blocks of each row, and the items whose arrival it
  // signals together.
  static constexpr int kGatherRows = kSharesWeights ? 4 : 8,
                       kGatherBlocks = kDecodes         ? 5
                                       : kSharesWeights ? 8
                                                        : 12,
                       kGatherBatch = kDecodes ? 2 : 4;
  static constexpr int kGatherRowBytes = kGatherBlocks * tile::kSwizzledRowBytes;
  static constexpr int kGatherBytes = kGathers ? kGatherRows * kGatherRowBytes : 0;
  // setmaxnreg redistributes the CTA's registers between producer and consumer warps.
  static constexpr int kRegisters = 65536 / kResident / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kGathers || (kPair && !kBoxes)       ? 56
                                            : kPair && !kDecodes && !kWholeBoxes ? 40
                                            : kPair                              ? 32
                                            : kWholeBoxes                        ? 24
                                            : kTileN > 128                       ? 48
                                                                                 : 40;
  static constexpr int kConsumerRegisters =
      std::min(240, (kRegisters * (kGroups + 1) - kProducerRegisters) / kGroups / 8 * 8);
};

constexpr int kTicketsApart =
    32;  // words between ticket counters: counters of launches that overlap are in different cache lines

// The layout of shared memory: as many stages as fit in addition to `list_bytes`.
template <class C>
constexpr TileShared tile_shared(int list_bytes) {
  constexpr int kStagesMax = 8,
                kMax = (228 << 10) / C::kResident - 1024;  // the system reserves 1 KiB per CTA
  TileShared s;
  for (s.stages = kStagesMax;; --s.stages) {
    s.epilogue = s.stages * C::kStageBytes;
    s.gathered = s.epilogue + C::kEpilogueBytes;
    s.tiles = s.gathered + PairGather::kWarps * C::kGatherBytes;
    s.published = s.tiles + kTilesAhead * 16;
    s.full = s.published + kTilesAhead * 8;
    s.empty = s.full + s.stages * 8;
    s.gather_full = s.empty + s.stages * 8;
    s.waves_begun = s.gather_full + (C::kGathers ? PairGather::kWarps * 8 : 0);
    s.before = s.waves_begun + (C::kGathers ? 8 : 0);
    s.bytes = s.before + list_bytes;
    if (s.bytes <= kMax || s.stages == 1) return s;
  }
}

#ifdef __CUDACC__

template <int kBlocks, int kSums>
__device__ __forceinline__ void set_zero(float (&d)[kBlocks][kSums]) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
}
template <int kBlocks, int kSums>
__device__ __forceinline__ void wait_for_sums(float (&d)[kBlocks][kSums]) {
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) tile::hold(d[b]);
}

// A warpgroup may stage y in the last stage, over its own weights there, because no other warpgroup reads those.
template <class C, bool kGated>
__device__ __forceinline__ uint32_t staging_in_stage(const TileRing<C>& ring, uint32_t last, int group) {
  static_assert(C::kBlocks * C::kSteps * C::kBlockBytes >= StraightEpilogue<kGated>::kStagingBytes);
  return ring.base + last * static_cast<uint32_t>(C::kStageBytes) + C::kWeights +
         group * C::kBlocks * C::kSteps * C::kBlockBytes;
}

// ScalesOf: what multiply() leaves for the epilogue. CodesOfTiles:
// the weight format of a tile kernel. bf16 weights have neither.
template <class C>
struct NoScales {};
template <class C, bool = C::kDecodes>
struct OfWeights {
  using Scales = NoScales<C>;
  using Codes = Mxfp4Codes;
};
template <class C>
struct OfWeights<C, true> {
  using Scales = typename C::Weights::template Scales<C>;
  using Codes = typename C::Weights::Codes;
};
template <class C>
using ScalesOf = typename OfWeights<C>::Scales;
template <class C>
using CodesOfTiles = typename OfWeights<C>::Codes;

// Multiplies one tile and writes its rows of y. N >= t.rows.
template <int N, class C, bool kGated>
__device__ __forceinline__ void multiply_tile(const ExpertParameters& p, const ExpertTile& t,
                                              TileRing<C>& ring) {
  const int all_warps = uniform(static_cast<int>(threadIdx.x / 32)), warp = all_warps % 4;
  const int group = all_warps / 4 - 1, first_block = t.first_block + group * C::kBlocks;
  const uint8_t* tops =
      p.w_scale + t.expert * p.scale_bytes + p.top_begin;  // largest scales or factors of the rows
  // The loads start here, so that the epilogue does not wait for them.
  using Ahead = EpilogueRowsAhead<C::kBlocks, kGated, CodesOfTiles<C>>;
  static_assert(!C::kDecodes || C::kGroups * Ahead::kBytes == C::kColumnScales);
  const Ahead ahead(ring.base + ring.at.epilogue + group * Ahead::kBytes);
  const EpilogueColumns<C> columns(ring.base + ring.at.epilogue, group);
  if constexpr (C::kFp8X) columns.ask(p, t);
  if constexpr (C::kDecodes) ahead.ask(p, t.expert, first_block, tops);
  float d[C::kBlocks][N / 2];
  set_zero(d);
  uint32_t last;
  [[maybe_unused]] ScalesOf<C> scales;
  if constexpr (C::kDecodes) {
    last = C::Weights::template multiply<N>(d, p.k_blocks, ring, scales);
  } else {
    last = C::Weights::template multiply<N>(d, p.k_blocks, ring);
  }
  wait_for_sums(d);
  EpilogueRows<kGated> epilogue[C::kBlocks];
  if constexpr (C::kDecodes) {
    ahead.get(epilogue, p, t.expert, first_block);
    if constexpr (C::kFp8X) columns.template apply<N>(d, p, t);
    if constexpr (C::Weights::Codes::kRescales) {
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
        for (int i = 0; i < 2; ++i) epilogue[b].factor[i] *= scales.of[b][i];
    }
  } else {
    read_rows(epilogue, p, t.expert, first_block, warp);
  }
  const tile::ActivationValues act = activation_of(p, t.expert);
  if (!has_straight_epilogue<kGated>(p, act)) {
    uint32_t releases = 1;
    // Depends on the load of the last scales, which may still be in flight (arrive_by_lane()).
    if constexpr (C::kDecodes && CodesOfTiles<C>::kRescales) releases |= __float_as_uint(scales.of[0][0]);
    ring.release(last, releases);
    epilogue_general<N, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue);
    return;
  }
  const uint32_t staging = staging_in_stage<C, kGated>(ring, last, group);
  epilogue_straight<N, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue,
                                           StraightEpilogue<kGated>(staging, group));
  ring.release(last);
}

// Multiplies one tile with the smallest N from kMin to kMax that holds its rows. Finds N by
// bisection, because trying one N after the other takes long if sums are short. Returns the last stage.
template <int kMin, int kMax, class C>
__device__ __forceinline__ uint32_t multiply_columns(float (&d)[C::kBlocks][C::kTileN / 2],
                                                     const ExpertParameters& p, int rows, TileRing<C>& ring) {
  if constexpr (kMin == kMax) {
    const uint32_t last = C::Weights::template multiply<kMax>(d, p.k_blocks, ring);
    wait_for_sums(d);  // must be here: if branches join before it, ptxas serializes wgmma
    return last;
  } else {
    constexpr int kMiddle = kMin + (kMax - kMin) / C::kStepN / 2 * C::kStepN;
    if (rows <= kMiddle) return multiply_columns<kMin, kMiddle>(d, p, rows, ring);
    return multiply_columns<kMiddle + C::kStepN, kMax>(d, p, rows, ring);
  }
}

// multiply_tile() with one epilogue for all N, which stages y in separate memory.
template <class C, bool kGated>
__device__ __forceinline__ void multiply_staged(const ExpertParameters& p, const ExpertTile& t,
                                                TileRing<C>& ring) {
  const int all_warps = uniform(static_cast<int>(threadIdx.x / 32)), warp = all_warps % 4;
  const int group = all_warps / 4 - 1, first_block = t.first_block + group * C::kBlocks;
  float d[C::kBlocks][C::kTileN / 2];
  set_zero(d);
  ring.release(multiply_columns<C::kNMin, C::kTileN>(d, p, t.rows, ring));
  EpilogueRows<kGated> epilogue[C::kBlocks];
  read_rows(epilogue, p, t.expert, first_block, warp);
  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint32_t staging = ring.base + ring.at.epilogue + static_cast<uint32_t>(group * C::kStagedBytes);
  const int blocks = min(C::kBlocks, min(t.end_block, p.row_blocks) - first_block);
  if (!has_epilogue_by_rows<kGated>(p, act, first_block + blocks - 1)) {
    static_assert(C::kStagedBytes >= StraightEpilogue<kGated>::kStagingBytes);
    if (has_straight_epilogue<kGated>(p, act)) {
      epilogue_straight<C::kTileN, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue,
                                                       StraightEpilogue<kGated>(staging, group));
    } else {
      epilogue_general<C::kTileN, C::kBlocks, kGated>(d, p, act, t, first_block, epilogue);
    }
    return;
  }
  const StagedRows staged{staging, warp, 1 + group};
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    if (b >= blocks) break;
    const auto write = [&]<Activation kAct>() {
      epilogue_by_rows<C::kTileN, kAct, C::kStagedBytes>(d[b], p, t, first_block + b, epilogue[b].bias,
                                                         staged);
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

// Multiplies one tile with the smallest N that holds its rows.
template <int N, class C, bool kGated>
__device__ __forceinline__ void multiply_rows(const ExpertParameters& p, const ExpertTile& t,
                                              TileRing<C>& ring) {
  if constexpr (C::kStagedBytes > 0) {
    multiply_staged<C, kGated>(p, t, ring);
  } else {
    if constexpr (N > C::kNMin)
      if (t.rows <= N - C::kStepN) return multiply_rows<N - C::kStepN, C, kGated>(p, t, ring);
    multiply_tile<N, C, kGated>(p, t, ring);
  }
}

// The loop of warp `warp` of the producer warpgroup: loads weights or rows of x.
template <class C>
__device__ __forceinline__ void produce(const ExpertParameters& p, const ExpertMaps<C>& x,
                                        const PairGather& gather, const TileSchedule<C>& list,
                                        TileRing<C>& ring, int warp) {
  if (warp < C::kWeightWarps) {
    fetch_weights(OneProduct<C>{p, list}, ring, warp);
    if (p.follows && blockIdx.x == 0) tile::wait_for_previous();
    return;
  }
  if (!p.follows) tile::wait_for_previous();
  if constexpr (C::kWholeBoxes) {
    if (warp == C::kWeightWarps) {
      fetch_boxes(p, x, gather, ring);
    } else if constexpr (C::kGathers) {
      const int gather_warp = warp - C::kWeightWarps - 1;
      gather_pair_rows<C>(p, gather, list, ring.gather_place(gather_warp), gather_warp);
    }
  } else if constexpr (C::kRows == XSource::kRowBoxes) {
    fetch_token_boxes(p, x.of[0], ring, warp - 1);
  } else {
    fetch_rows(OneProduct<C>{p, list}, ring);
  }
}

// A launch that follows another launch of the same product can start only after all CTAs of that launch have waited for
// their predecessor and called release_next(). All its inputs are written by then, so it does not wait. Only its CTA 0
// waits before it exits, so that a later launch that waits for this one has waited for both (tile/dependent.cuh).
template <class C, bool kGated>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    expert_gemm_tiles(const __grid_constant__ ExpertParameters p, const __grid_constant__ TileShared at,
                      const __grid_constant__ ExpertMaps<C> x, const __grid_constant__ PairGather gather) {
  if (p.follows) {
    tile::release_next();
    if (!serves_any(p)) {
      if (blockIdx.x == 0) tile::wait_for_previous();
      return;
    }
  }
  // The start of shared memory must be aligned: 1 KiB of padding would cost some rings their last stage.
  extern __shared__ __align__(1024) uint8_t base[];
  if (tile::shared_address(base) % 1024 != 0) __trap();
  TileRing<C> ring{tile::shared_address(base), at, {}};
  ring.init(base);
  if (C::kGathers && threadIdx.x < PairGather::kWarps)
    tile::barrier_init(reinterpret_cast<uint64_t*>(base + at.gather_full) + threadIdx.x, 1);
  if (C::kGathers && threadIdx.x == 0) tile::store_shared_word(ring.base + at.waves_begun, 0);
  if (threadIdx.x < 32) tile::barrier_visible();
  if constexpr (C::kPair) {
    ring.rank = static_cast<uint32_t>(uniform(static_cast<int>(tile::cluster_rank())));
    ring.peer = tile::remote_address(ring.base, ring.rank ^ 1);
    __syncwarp();
    tile::cluster_arrive();
  }
  if (C::kBoxes && threadIdx.x < C::kMaps) tile::prefetch_map(x.of[threadIdx.x]);
  if (!p.settled && !p.follows) tile::wait_for_previous();
  auto* before = reinterpret_cast<int32_t*>(base + at.before);
  TileSchedule<C> list{before, reinterpret_cast<uint16_t*>(before + p.experts + 1)};
  // Scratch for the list: the epilogue's staging, or the weights of a stage that is still empty. The
  // latter is not possible if CTAs share weights, because the peer CTA may already copy weights there.
  static_assert((C::kStagedBytes > 0 ? C::kStagedBytes : C::kStageBytes - C::kWeights) >=
                kExpertListScratchBytes<C::kThreads>);
  static_assert(C::kStagedBytes > 0 || !C::kSharesWeights);
  list.make(p, reinterpret_cast<int32_t*>(base + (C::kStagedBytes > 0 ? at.epilogue : C::kWeights)));
  if constexpr (C::kPair) tile::cluster_wait();  // the peer CTA runs, and its barriers are initialized
  // Uniform, because for a divergent `warp` the compiler emits three times as many instructions per copy.
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < 4) {
    if constexpr (C::kGroups > 1) tile::keep_registers<C::kProducerRegisters>();
    produce(p, x, gather, list, ring, warp);
  } else {
    if (!p.follows) tile::wait_for_previous();
    tile::release_next();
    if constexpr (C::kGroups > 1) tile::take_registers<C::kConsumerRegisters>();
    const int group = warp / 4 - 1;
#pragma unroll 1
    for (int count = 0;; ++count) {
      const ExpertTile t = ring.wait_tile(count);
      if (ring.ends(t)) break;
      if (C::Weights::kStaggers && count == 0) {
        ring.leads = group == 0;
        if (group > 0) ring.wait_for_leader();
      }
      if ((!C::kSharesWeights || t.rows > 0) && t.first_block + group * C::kBlocks < t.end_block) {
        multiply_rows<C::kTileN, C, kGated>(p, t, ring);
      } else {
        ring.skip(p.k_blocks);
      }
    }
    if (ring.leads) ring.let_start();
  }
  if constexpr (C::kPair) {  // no CTA exits while its peer may still arrive or copy here
    __syncwarp();
    tile::cluster_publish();
    tile::cluster_wait();
  }
}

#endif

}  // namespace sluice::cuda
