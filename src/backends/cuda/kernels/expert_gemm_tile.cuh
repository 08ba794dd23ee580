// The kernel of the expert GEMMs in tiles: some weight rows x up to kMost rows of x, one tile after the other.
//
// One to three warpgroups multiply, each one or two row blocks of 64: x stands swizzled in shared memory, and wgmma takes
// bf16 weights from there too, codes from registers, where they are dequantised. Each goes at its own pace, so that one finishes
// a tile while others multiply. Of one more warpgroup one warp fetches weights in bulk, and three rows of x, 16 bytes a
// thread, from wherever their tokens are.
#pragma once
#include <algorithm>
#include <type_traits>

#include "backends/cuda/expert_gemm.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {

constexpr int kXWarps = 3;  // that fetch rows of x

struct Mxfp4Blocks;
struct Bf16Blocks;

// A block of bf16 weights is a tile as wgmma's descriptor reads it.
constexpr bool bf16_blocks_are_swizzled() {
  for (int64_t row = 0; row < kFragmentRows; ++row)
    for (int64_t k = 0; k < kFragmentWidth; ++k)
      if (2 * fragment_bf16_index({1, 1}, {0, row}, k) !=
          tile::swizzled(static_cast<uint32_t>(row), static_cast<uint32_t>(2 * k)))
        return false;
  return true;
}
static_assert(bf16_blocks_are_swizzled());

// What a kernel is made for.
template <class Weights_, int kGroups_, int kBlocks_, int kMost_, int kSteps_, int kResident_ = 1>
struct ExpertTiles {
  using Weights = Weights_;
  static constexpr int kGroups = kGroups_;      // warpgroups that multiply
  static constexpr int kBlocks = kBlocks_;      // row blocks of each
  static constexpr int kMost = kMost_;          // rows of x
  static constexpr int kSteps = kSteps_;        // k blocks in a stage
  static constexpr int kResident = kResident_;  // blocks of threads on an SM
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr bool kMxfp4 = std::is_same_v<Weights, Mxfp4Blocks>;
  // Columns of wgmma that there is code for: kMost, fewer(kMost), and so on to kLeast.
  static constexpr int kLeast = kMost == 32    ? 8
                                : kMost == 144 ? 80
                                               : kMost / 2,
                       kFiner = std::min(32, kMost / 4);
  SLUICE_HOST_DEVICE static constexpr int fewer(int columns) {
    return kMost == 32 ? columns / 2 : columns - kFiner;
  }
  // A stage: x, weights, scales.
  static constexpr int kRowBlocks = kGroups * kBlocks;
  static constexpr int kBlockBytes =
      static_cast<int>(kMxfp4 ? kFragmentCodeBytes : 2 * kFragmentBf16Elements);
  static constexpr int kScaleBytes = static_cast<int>(kMxfp4 ? kFragmentScaleBytes : 0);
  static constexpr int kXBytes = kMost * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kWeights = kSteps * kXBytes;                // where they begin
  static constexpr int kScales = kWeights + kRowBlocks * kSteps * kBlockBytes;
  static constexpr int kStageBytes = (kScales + kRowBlocks * kSteps * kScaleBytes + 1023) / 1024 * 1024;
  // wgmma reads tiles whose rows stand in the order of swizzle.cuh, so they begin at multiples of 1024.
  static_assert(kXBytes % 1024 == 0 && (kMxfp4 || kBlockBytes % 1024 == 0));
  // The registers that a block starts with, divided anew: what fetches rows of x keeps few.
  static constexpr int kRegisters = 65536 / kResident / kThreads / 8 * 8;
  static constexpr int kFetch = kMost > 144 ? 56 : 40;
  static constexpr int kMultiply = std::min(240, (kRegisters * (kGroups + 1) - kFetch) / kGroups / 8 * 8);
};

// Offsets in shared memory; the stages come first, aligned to 1024.
struct ExpertShared {
  int stages = 0, full = 0, empty = 0, staging = 0, scratch = 0, before = 0, bytes = 0;
};
template <class C>
ExpertShared expert_shared(int experts) {
  constexpr int kStagesMost = 8;
  constexpr int kMost = (228 << 10) / C::kResident - 1024;  // a KB of each block is the system's
  constexpr int kStaging = C::kGroups * 4 * SlabFinish<false>::kStagingBytes;
  const int rest = 2 * kStagesMost * 8 + kStaging + 64 + (experts + 1) * 4;
  ExpertShared s;
  s.stages = std::min(kStagesMost, (kMost - 1024 - rest) / C::kStageBytes);
  s.staging = s.stages * C::kStageBytes;
  s.full = s.staging + kStaging;
  s.empty = s.full + kStagesMost * 8;
  s.scratch = s.empty + kStagesMost * 8;
  s.before = s.scratch + 64;
  s.bytes = 1024 + s.before + (experts + 1) * 4;
  return s;
}

#ifdef __CUDACC__

template <int kRegisters>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <class C>
struct ExpertRing {
  uint8_t* base;  // of shared memory, aligned
  ExpertShared at;
  tile::RingPlace place;

  __device__ __forceinline__ uint8_t* stage() const {
    return base + place.stage * static_cast<uint32_t>(C::kStageBytes);
  }
  __device__ __forceinline__ uint64_t* full(uint32_t stage) const {
    return reinterpret_cast<uint64_t*>(base + at.full) + stage;
  }
  __device__ __forceinline__ uint64_t* empty(uint32_t stage) const {
    return reinterpret_cast<uint64_t*>(base + at.empty) + stage;
  }
};

// Fetches the weights of all tiles of this block: one warp.
template <class C>
__device__ __forceinline__ void fetch_weights(const ExpertParameters& p, const ExpertTileList& list,
                                              ExpertRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    const int blocks = min(C::kRowBlocks, p.row_blocks - t.first_block);
    const int64_t first = static_cast<int64_t>(t.first_block) * p.k_blocks;
    const uint8_t* weights = p.w + t.expert * p.w_bytes + first * C::kBlockBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + first * C::kScaleBytes;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(ring.empty(ring.place.stage), ring.place.parity ^ 1);
      const uint32_t stage = tile::shared_address(ring.stage());
      uint64_t* full = ring.full(ring.place.stage);
      tile::barrier_expect_by_warp(full,
                                   static_cast<uint32_t>(blocks * steps * (C::kBlockBytes + C::kScaleBytes)));
      const uint32_t barrier = tile::shared_address(full);
#pragma unroll
      for (int b = 0; b < C::kRowBlocks; ++b) {
        if (b >= blocks) break;
        const int64_t block = static_cast<int64_t>(b) * p.k_blocks + k;
        tile::copy_bulk(stage + C::kWeights + b * C::kSteps * C::kBlockBytes,
                        weights + block * C::kBlockBytes, static_cast<uint32_t>(steps) * C::kBlockBytes,
                        barrier);
        if constexpr (C::kScaleBytes > 0)
          tile::copy_bulk(stage + C::kScales + b * C::kSteps * C::kScaleBytes,
                          scales + block * C::kScaleBytes, static_cast<uint32_t>(steps) * C::kScaleBytes,
                          barrier);
      }
      ring.place.step(stages);
    }
  }
}

// Fetches the rows of x of all tiles of this block: kXWarps warps.
template <class C>
__device__ __forceinline__ void fetch_rows(const ExpertParameters& p, const ExpertTileList& list,
                                           ExpertRing<C> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<C::kMost, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    rows.begin(p, list.at(p, index));
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      tile::barrier_wait_by_warp(ring.empty(ring.place.stage), ring.place.parity ^ 1);
      rows.template copy<C::kSteps>(p, tile::shared_address(ring.stage()), k);
      arrive_with_x(p, ring.full(ring.place.stage));
      ring.place.step(stages);
    }
  }
}

// Sums of one tile in codes: dequantised in registers while the tensor cores take what was dequantised before. Answers the
// last stage, which the caller gives back once its products are done.
struct Mxfp4Blocks {
  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2],
                                                      const ExpertParameters& p, ExpertRing<C>& ring) {
    const int tid = static_cast<int>(threadIdx.x % 128), group = static_cast<int>(threadIdx.x / 128) - 1;
    const int warp = tid / 32, lane = tid % 32;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(ring.full(ring.place.stage), ring.place.parity);
      tile::fence_for_async();
      // Uniform, so that descriptors are made outside of the lanes' registers.
      const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(tile::shared_address(ring.stage()))));
      const uint32_t words = stage + C::kWeights + group * C::kBlocks * C::kSteps * C::kBlockBytes + tid * 16;
      const uint32_t scales =
          stage + C::kScales + group * C::kBlocks * C::kSteps * C::kScaleBytes + (warp * 8 + lane / 4) * 4;
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
        if (step >= steps) break;
        const uint64_t x = tile::describe_tile(stage + step * C::kXBytes);
        uint4 code[C::kBlocks];
        uint32_t scale[C::kBlocks];
#pragma unroll
        for (int b = 0; b < C::kBlocks; ++b) {
          code[b] = tile::load_shared(words + (b * C::kSteps + step) * C::kBlockBytes);
          scale[b] = tile::load_shared_word(scales + (b * C::kSteps + step) * C::kScaleBytes);
        }
        uint32_t a[2][C::kBlocks][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          tile::wait_groups<1>();
          // What read the stage in front is done.
          if (step == 0 && j == 1) tile::arrive_by_warp(tile::shared_address(ring.empty(before)), k > 0);
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b) {
            const uint32_t word = j == 0 ? code[b].x : j == 1 ? code[b].y : j == 2 ? code[b].z : code[b].w;
            tile::decode_fragment(a[j % 2][b], word,
                                  j < 2 ? tile::scale_pair<0>(scale[b]) : tile::scale_pair<1>(scale[b]));
          }
          tile::fence_operands();
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b)
            tile::multiply_registers<N>(d[b], a[j % 2][b], x + j * tile::kNext16, 1);
          tile::commit_group();
        }
      }
      before = ring.place.stage;
      ring.place.step(stages);
    }
    return before;
  }
};

// The same in bf16: a k block's products wait for none but those in front of them.
struct Bf16Blocks {
  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2],
                                                      const ExpertParameters& p, ExpertRing<C>& ring) {
    const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(ring.full(ring.place.stage), ring.place.parity);
      tile::fence_for_async();
      // Uniform, so that descriptors are made outside of the lanes' registers.
      const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(tile::shared_address(ring.stage()))));
      const uint32_t weights = stage + C::kWeights + group * C::kBlocks * C::kSteps * C::kBlockBytes;
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
        if (step >= steps) break;
        const uint64_t x = tile::describe_tile(stage + step * C::kXBytes);
        const uint64_t w = tile::describe_tile(weights + step * C::kBlockBytes);
        tile::fence_operands();
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b)
            tile::multiply<N>(d[b],
                              w + b * (C::kSteps * C::kBlockBytes / tile::kDescribed) + j * tile::kNext16,
                              x + j * tile::kNext16, 1);
        tile::commit_group();
        tile::wait_groups<1>();
        // What read the stage in front is done.
        if (step == 0) tile::arrive_by_warp(tile::shared_address(ring.empty(before)), k > 0);
      }
      before = ring.place.stage;
      ring.place.step(stages);
    }
    return before;
  }
};

// Multiplies one tile, N >= its rows, and writes its rows of y.
template <int N, class C, bool kGated>
__device__ __forceinline__ void multiply_tile(const ExpertParameters& p, const ExpertTile& t,
                                              ExpertRing<C>& ring) {
  const int group = static_cast<int>(threadIdx.x / 128) - 1, warp = static_cast<int>(threadIdx.x % 128) / 32;
  float d[C::kBlocks][N / 2];
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
  const uint32_t last = C::Weights::template multiply<N>(d, p, ring);
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) tile::hold(d[b]);
  tile::arrive_by_warp(tile::shared_address(ring.empty(last)));

  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint8_t* tops = p.w_scale + t.expert * p.scale_bytes + p.top_begin;  // of codes
  const uint32_t staging = tile::shared_address(ring.base + ring.at.staging) +
                           static_cast<uint32_t>((group * 4 + warp) * SlabFinish<kGated>::kStagingBytes);
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    const int block = t.first_block + group * C::kBlocks + b;
    if (block >= p.row_blocks) break;
    const SlabFinish<kGated> finish(p, t.expert, block, warp,
                                    C::kMxfp4 ? tops + block * kFragmentRows : nullptr);
#pragma unroll 1
    for (int c = 0; 16 * c < t.rows; ++c) {
      stage_sums<N>(d[b], c, staging);
      __syncwarp();
      finish.write(p, act, t, 16 * c, staging);
      __syncwarp();
    }
  }
}

// multiply_tile of the fewest columns that the tile's rows fit in.
template <int N, class C, bool kGated>
__device__ __forceinline__ void multiply_rows(const ExpertParameters& p, const ExpertTile& t,
                                              ExpertRing<C>& ring) {
  if constexpr (N > C::kLeast)
    if (t.rows <= C::fewer(N)) return multiply_rows<C::fewer(N), C, kGated>(p, t, ring);
  multiply_tile<N, C, kGated>(p, t, ring);
}

template <class C, bool kGated>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    expert_tiles(const __grid_constant__ ExpertParameters p, const __grid_constant__ ExpertShared at) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* base = dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024;
  ExpertRing<C> ring{base, at, {}};
  if (threadIdx.x < static_cast<unsigned>(at.stages)) {
    tile::barrier_init(ring.full(threadIdx.x), 32 * kXWarps + 1);
    tile::barrier_init(ring.empty(threadIdx.x), C::kGroups * 4);
  }
  if (threadIdx.x == 0) tile::barrier_visible();
  tile::wait_for_previous();
  tile::release_next();
  auto* before = reinterpret_cast<int32_t*>(base + at.before);
  const ExpertTileList list{before, ceil_div(p.row_blocks, C::kRowBlocks), C::kRowBlocks, C::kMost};
  count_expert_tiles(p, list, before, reinterpret_cast<int32_t*>(base + at.scratch));
  if (threadIdx.x < 128) {
    if constexpr (C::kGroups > 1) keep_registers<C::kFetch>();
    if (threadIdx.x < 32) fetch_weights(p, list, ring);
    if (threadIdx.x >= 32) fetch_rows(p, list, ring);
    return;
  }
  if constexpr (C::kGroups > 1) take_registers<C::kMultiply>();
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    multiply_rows<C::kMost, C, kGated>(p, t, ring);
  }
}

template <class C>
Status launch_tiles(std::string_view name, const ExpertGemm::Problem& p, const ExpertGemm::Args& a,
                    Stream stream) {
  int sms = 0;
  SLUICE_TRY(check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, queue_of(stream).device),
                   "counting SMs"));
  const ExpertShared at = expert_shared<C>(static_cast<int>(p.experts));
  const Launch how{.grid = {static_cast<unsigned>(sms * C::kResident), 1, 1},
                   .block = {C::kThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(at.bytes)};
  const auto kernel = is_gated(p.act) ? expert_tiles<C, true> : expert_tiles<C, false>;
  return launch(name, kernel, how, stream, expert_parameters(p, a), at);
}

#endif

}  // namespace sluice::cuda
