// The kernel of expert_gemm_mxfp4_tile_sm90: tiles of some weight rows x up to kMost rows of x, one after the other.
//
// Two or three warpgroups multiply, each 128 of the weight rows: codes from shared memory become bf16 in registers and meet x,
// which stands swizzled in shared memory, in wgmma. Each goes at its own pace, so that one finishes a tile while
// others multiply. Of one more warpgroup one warp fetches codes and scales in bulk, and three rows of x, 16 bytes a thread,
// from wherever their tokens are.
#pragma once
#include <algorithm>

#include "backends/cuda/expert_gemm.cuh"
#include "backends/cuda/tile/async_copy.cuh"
#include "backends/cuda/tile/bulk_copy.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {

constexpr int kExpertBlocks = 2;  // row blocks of a warpgroup
constexpr int kXWarps = 3;        // that fetch rows of x
constexpr int kExpertSharedMost = 227 << 10;

// kGroups warpgroups that multiply; kMost rows of x; kSteps k blocks in a stage.
template <int kGroups, int kMost, int kSteps>
struct ExpertStage {
  static constexpr int kRowBlocks = kGroups * kExpertBlocks;
  static constexpr int kXBytes = kMost * tile::kSwizzledRowBytes;  // of one step
  static constexpr int kCodes = kSteps * kXBytes;                  // where they begin
  static constexpr int kScales = kCodes + kRowBlocks * kSteps * static_cast<int>(kFragmentCodeBytes);
  static constexpr int kBytes =
      (kScales + kRowBlocks * kSteps * static_cast<int>(kFragmentScaleBytes) + 1023) / 1024 * 1024;
};

// Offsets in shared memory; the stages come first, aligned to 1024.
struct ExpertShared {
  int stages = 0, full = 0, empty = 0, staging = 0, scratch = 0, before = 0, bytes = 0;
};
template <int kGroups, int kMost, int kSteps>
ExpertShared expert_shared(int experts) {
  constexpr int kStage = ExpertStage<kGroups, kMost, kSteps>::kBytes, kStagesMost = 8;
  const int rest =
      2 * kStagesMost * 8 + kGroups * 4 * SlabFinish<false>::kStagingBytes + 64 + (experts + 1) * 4;
  ExpertShared s;
  s.stages = std::min(kStagesMost, (kExpertSharedMost - 1024 - rest) / kStage);
  s.staging = s.stages * kStage;
  s.full = s.staging + kGroups * 4 * SlabFinish<false>::kStagingBytes;
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

template <int kGroups, int kMost, int kSteps>
struct ExpertRing {
  uint8_t* base;  // of shared memory, aligned
  ExpertShared at;
  tile::RingPlace place;

  __device__ __forceinline__ uint8_t* stage() const {
    return base + place.stage * static_cast<uint32_t>(ExpertStage<kGroups, kMost, kSteps>::kBytes);
  }
  __device__ __forceinline__ uint64_t* full(uint32_t stage) const {
    return reinterpret_cast<uint64_t*>(base + at.full) + stage;
  }
  __device__ __forceinline__ uint64_t* empty(uint32_t stage) const {
    return reinterpret_cast<uint64_t*>(base + at.empty) + stage;
  }
};

// Fetches codes and scales of all tiles of this block: one warp.
template <int kGroups, int kMost, int kSteps>
__device__ __forceinline__ void fetch_weights(const ExpertParameters& p, const ExpertTileList& list,
                                              ExpertRing<kGroups, kMost, kSteps> ring) {
  using Stage = ExpertStage<kGroups, kMost, kSteps>;
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    const int blocks = min(Stage::kRowBlocks, p.row_blocks - t.first_block);
    const int64_t first = static_cast<int64_t>(t.first_block) * p.k_blocks;
    const uint8_t* codes = p.w + t.expert * p.w_bytes + first * kFragmentCodeBytes;
    const uint8_t* scales = p.w_scale + t.expert * p.scale_bytes + first * kFragmentScaleBytes;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += kSteps) {
      const int steps = min(kSteps, p.k_blocks - k);
      tile::barrier_wait_by_warp(ring.empty(ring.place.stage), ring.place.parity ^ 1);
      const uint32_t stage = tile::shared_address(ring.stage());
      uint64_t* full = ring.full(ring.place.stage);
      tile::barrier_expect_by_warp(
          full,
          static_cast<uint32_t>(blocks * steps * static_cast<int>(kFragmentCodeBytes + kFragmentScaleBytes)));
      const uint32_t barrier = tile::shared_address(full);
#pragma unroll
      for (int b = 0; b < Stage::kRowBlocks; ++b) {
        if (b >= blocks) break;
        const int64_t block = static_cast<int64_t>(b) * p.k_blocks + k;
        tile::copy_bulk(stage + Stage::kCodes + b * kSteps * kFragmentCodeBytes,
                        codes + block * kFragmentCodeBytes, static_cast<uint32_t>(steps) * kFragmentCodeBytes,
                        barrier);
        tile::copy_bulk(stage + Stage::kScales + b * kSteps * kFragmentScaleBytes,
                        scales + block * kFragmentScaleBytes,
                        static_cast<uint32_t>(steps) * kFragmentScaleBytes, barrier);
      }
      ring.place.step(stages);
    }
  }
}

// Fetches the rows of x of all tiles of this block: kXWarps warps.
template <int kGroups, int kMost, int kSteps>
__device__ __forceinline__ void fetch_rows(const ExpertParameters& p, const ExpertTileList& list,
                                           ExpertRing<kGroups, kMost, kSteps> ring) {
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  RowFetch<kMost, kXWarps> rows(static_cast<int>(threadIdx.x) - 32);
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    rows.begin(p, list.at(p, index));
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += kSteps) {
      tile::barrier_wait_by_warp(ring.empty(ring.place.stage), ring.place.parity ^ 1);
      rows.template copy<kSteps>(p, tile::shared_address(ring.stage()), k);
      arrive_with_x(p, ring.full(ring.place.stage));
      ring.place.step(stages);
    }
  }
}

// Multiplies one tile, N >= its rows, and writes its rows of y.
template <int N, int kGroups, int kMost, int kSteps, bool kGated>
__device__ __forceinline__ void multiply_tile(const ExpertParameters& p, const ExpertTile& t,
                                              ExpertRing<kGroups, kMost, kSteps>& ring) {
  using Stage = ExpertStage<kGroups, kMost, kSteps>;
  const int tid = static_cast<int>(threadIdx.x % 128), group = static_cast<int>(threadIdx.x / 128) - 1;
  const int warp = tid / 32, lane = tid % 32;
  const auto stages = static_cast<uint32_t>(ring.at.stages);
  float d[kExpertBlocks][N / 2];
#pragma unroll
  for (int b = 0; b < kExpertBlocks; ++b)
#pragma unroll
    for (float& sum : d[b]) sum = 0;
  uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
  for (int k = 0; k < p.k_blocks; k += kSteps) {
    const int steps = min(kSteps, p.k_blocks - k);
    tile::barrier_wait_by_warp(ring.full(ring.place.stage), ring.place.parity);
    tile::fence_for_async();
    // Uniform, so that descriptors are made outside of the lanes' registers.
    const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(tile::shared_address(ring.stage()))));
    const uint32_t words =
        stage + Stage::kCodes + group * kExpertBlocks * kSteps * kFragmentCodeBytes + tid * 16;
    const uint32_t scales = stage + Stage::kScales + group * kExpertBlocks * kSteps * kFragmentScaleBytes +
                            (warp * 8 + lane / 4) * 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step >= steps) break;
      const uint64_t x = tile::describe_tile(stage + step * Stage::kXBytes);
      uint4 code[kExpertBlocks];
      uint32_t scale[kExpertBlocks];
#pragma unroll
      for (int b = 0; b < kExpertBlocks; ++b) {
        code[b] = tile::load_shared(words + (b * kSteps + step) * kFragmentCodeBytes);
        scale[b] = tile::load_shared_word(scales + (b * kSteps + step) * kFragmentScaleBytes);
      }
      uint32_t a[2][kExpertBlocks][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        tile::wait_groups<1>();
        // What read the stage in front is done.
        if (step == 0 && j == 1) tile::arrive_by_warp(tile::shared_address(ring.empty(before)), k > 0);
#pragma unroll
        for (int b = 0; b < kExpertBlocks; ++b) {
          const uint32_t word = j == 0 ? code[b].x : j == 1 ? code[b].y : j == 2 ? code[b].z : code[b].w;
          tile::decode_fragment(a[j % 2][b], word,
                                j < 2 ? tile::scale_pair<0>(scale[b]) : tile::scale_pair<1>(scale[b]));
        }
        tile::fence_operands();
#pragma unroll
        for (int b = 0; b < kExpertBlocks; ++b)
          tile::multiply_registers<N>(d[b], a[j % 2][b], x + j * tile::kNext16, 1);
        tile::commit_group();
      }
    }
    before = ring.place.stage;
    ring.place.step(stages);
  }
  tile::wait_groups<0>();
#pragma unroll
  for (int b = 0; b < kExpertBlocks; ++b) tile::hold(d[b]);
  tile::arrive_by_warp(tile::shared_address(ring.empty(before)));

  const tile::ActivationValues act = activation_of(p, t.expert);
  const uint8_t* tops = p.w_scale + t.expert * p.scale_bytes + p.top_begin;
  const uint32_t staging = tile::shared_address(ring.base + ring.at.staging) +
                           static_cast<uint32_t>((group * 4 + warp) * SlabFinish<kGated>::kStagingBytes);
#pragma unroll
  for (int b = 0; b < kExpertBlocks; ++b) {
    const int block = t.first_block + group * kExpertBlocks + b;
    if (block >= p.row_blocks) break;
    const SlabFinish<kGated> finish(p, t.expert, block, warp, tops + block * kFragmentRows);
#pragma unroll 1
    for (int c = 0; 16 * c < t.rows; ++c) {
      stage_sums<N>(d[b], c, staging);
      __syncwarp();
      finish.write(p, act, t, 16 * c, staging);
      __syncwarp();
    }
  }
}

template <int kGroups, int kMost, int kSteps, bool kGated>
__global__ void __launch_bounds__((kGroups + 1) * 128, 1)
    expert_tiles(const __grid_constant__ ExpertParameters p, const __grid_constant__ ExpertShared at) {
  extern __shared__ uint8_t dynamic[];
  uint8_t* base = dynamic + (1024 - tile::shared_address(dynamic) % 1024) % 1024;
  ExpertRing<kGroups, kMost, kSteps> ring{base, at, {}};
  if (threadIdx.x < static_cast<unsigned>(at.stages)) {
    tile::barrier_init(ring.full(threadIdx.x), 32 * kXWarps + 1);
    tile::barrier_init(ring.empty(threadIdx.x), kGroups * 4);
  }
  if (threadIdx.x == 0) tile::barrier_visible();
  tile::wait_for_previous();
  tile::release_next();
  auto* before = reinterpret_cast<int32_t*>(base + at.before);
  constexpr int kBlocks = kGroups * kExpertBlocks;
  const ExpertTileList list{before, ceil_div(p.row_blocks, kBlocks), kBlocks, kMost};
  count_expert_tiles(p, list, before, reinterpret_cast<int32_t*>(base + at.scratch));
  if (threadIdx.x < 128) {
    keep_registers<40>();
    if (threadIdx.x < 32) fetch_weights(p, list, ring);
    if (threadIdx.x >= 32) fetch_rows(p, list, ring);
    return;
  }
  take_registers<kGroups == 2 ? 232 : 152>();
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    // Widths that fit the registers of one kernel together.
    constexpr int kFew = kMost == 32   ? 8
                         : kMost == 64 ? 32
                                       : 80,
                  kMore = kMost == 32   ? 16
                          : kMost == 64 ? 48
                                        : 112;
    static_assert(kMost == 32 || kMost == 64 || kMost == 144);
    if (t.rows > kMore) {
      multiply_tile<kMost, kGroups, kMost, kSteps, kGated>(p, t, ring);
    } else if (t.rows > kFew) {
      multiply_tile<kMore, kGroups, kMost, kSteps, kGated>(p, t, ring);
    } else {
      multiply_tile<kFew, kGroups, kMost, kSteps, kGated>(p, t, ring);
    }
  }
}

#endif

}  // namespace sluice::cuda
