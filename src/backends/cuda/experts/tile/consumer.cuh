// Mainloops of the tile kernels (tiles.cuh): multiply a warpgroup's row blocks by a tile's rows of x, reading both from the ring of stages.
#pragma once
#include <cstdint>

#include "backends/cuda/experts/codes.cuh"
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/tile/ring.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Mainloop of one tile for the formats of codes.cuh: threads decode codes in registers while the tensor
// cores multiply the previously decoded codes. Returns the last stage; the caller releases it when its
// products are done. Only the last stage may have fewer than kSteps k blocks: a branch between k blocks
// would keep the compiler from interleaving loads and decodes of one k block with products of another.
template <class Codes_>
struct DecodedBlocks {
  using Codes = Codes_;
  static constexpr bool kDecodes = true, kStaggers = false;
  static constexpr int kCodeBytes = Codes::kCodeBytes, kScaleBytes = Codes::kScaleBytes;  // per k block
  // K blocks in a row of 128 bytes of x.
  static constexpr int kBlocksOfRow = Codes::kOperands == tile::Operands::kBF16 ? 1 : 2;
  // What the epilogue multiplies sums by. With Codes::kRescales: the scales
  // of the last k block, for the thread's row and the row 8 below it.
  template <class C>
  struct Scales {
    float of[C::kBlocks][2];
  };

  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2], int k_blocks,
                                                      TileRing<C>& ring, Scales<C>& scales_of) {
    const int tid = static_cast<int>(threadIdx.x % 128),
              group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const int warp = tid / 32, lane = tid % 32;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t words =
        C::kWeights + group * C::kBlocks * C::kSteps * C::kBlockBytes + Codes::codes_at(warp, lane);
    uint32_t scales =
        C::kScales + group * C::kBlocks * C::kSteps * C::kScaleBytes + Codes::scales_at(warp, lane);
    asm volatile("" : "+r"(words), "+r"(scales));  // otherwise recomputed in every stage
    uint32_t previous = 0;
    int left = k_blocks;
#pragma unroll 1
    for (; left >= C::kSteps; left -= C::kSteps) {
      const uint32_t stage = wait_full(ring);
      multiply_steps<C::kSteps, N>(d, ring, {stage + words, stage + scales, tile::describe_tile(stage)},
                                   previous, left < k_blocks, scales_of);
      previous = ring.place.stage;
      ring.place.step(stages);
    }
    if (left == 0) return previous;
    const uint32_t stage = wait_full(ring);
    Step step{stage + words, stage + scales, tile::describe_tile(stage)};
    bool releases = left < k_blocks;
    const uint64_t x = step.x;
#pragma unroll 1
    for (int block = 0; block < left; releases = false) {
      multiply_steps<1, N>(d, ring, step, previous, releases, scales_of);
      step.words += C::kBlockBytes, step.scales += C::kScaleBytes, step.x = x + x_of<C>(++block);
    }
    previous = ring.place.stage;
    ring.place.step(stages);
    return previous;
  }

 protected:
  // Addresses of the thread's codes and scales in a k block of the first row block, and the wgmma descriptor of x.
  struct Step {
    uint32_t words, scales;
    uint64_t x;
  };

  // Where x of k block `block` of a stage is, as a distance between descriptors.
  template <class C>
  static __device__ __forceinline__ uint64_t x_of(int block) {
    constexpr uint64_t kNextBlock =
        tile::kSwizzledRowBytes / 2 / tile::kDescribed;  // if a row has two blocks
    return block / kBlocksOfRow * (C::kXBytes / tile::kDescribed) + block % kBlocksOfRow * kNextBlock;
  }

  template <class C>
  static __device__ __forceinline__ uint32_t wait_full(const TileRing<C>& ring) {
    ring.wait_full();
    if constexpr (!C::kBoxes) tile::fence_for_async();
    // Uniform, so that descriptors are computed in uniform registers.
    return static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
  }

  // Multiplies kSteps k blocks, beginning with `first`. If `releases`, releases stage `previous` once the products that read it are done.
  template <int kSteps, int N, class C>
  static __device__ __forceinline__ void multiply_steps(float (&d)[C::kBlocks][N / 2],
                                                        const TileRing<C>& ring, const Step& first,
                                                        uint32_t previous, bool releases,
                                                        Scales<C>& scales_of) {
    // With two row blocks, a wgmma group is two of a k block's four products, and it is decoded while the
    // previous group is in flight. Smaller groups would wait more often, larger ones would not fit
    // into registers. With one row block, a group is one product, and two groups are in flight.
    constexpr bool kTwoInFlight = C::kBlocks == 1;
    constexpr int kEach = kTwoInFlight || kSteps == 1 ? 1 : 2, kGroupsOfStep = Codes::kProducts / kEach;
    uint32_t a[2][kEach][C::kBlocks][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      typename Codes::Block block[C::kBlocks];
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
        block[b].load(first.words + (b * C::kSteps + step) * C::kBlockBytes,
                      first.scales + (b * C::kSteps + step) * C::kScaleBytes);
      const uint64_t x = first.x + x_of<C>(step);
#pragma unroll
      for (int batch = step * kGroupsOfStep; batch < (step + 1) * kGroupsOfStep; ++batch) {
        const int begin = batch % kGroupsOfStep * kEach;
        const bool rescales = Codes::kRescales && begin == 0 && changes_scale(block);
        const auto wait = [&] {
          if (batch == 0 || rescales || !kTwoInFlight) {
            tile::wait_groups<0>();
          } else {
            tile::wait_groups<1>();
          }
          if (batch == 0) ring.release(previous, releases);
          if (rescales) rescale<N, C>(d, block);
          if (begin == 0) keep_scales<C>(block, scales_of);
        };
        if (kTwoInFlight) wait();
#pragma unroll
        for (int j = begin; j < begin + kEach; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b) {
            uint32_t(&to)[4] = a[batch % 2][j - begin][b];
            if (j == 0) block[b].template decode<0>(to);
            if (j == 1) block[b].template decode<1>(to);
            if constexpr (Codes::kProducts > 2) {
              if (j == 2) block[b].template decode<2>(to);
              if (j == 3) block[b].template decode<3>(to);
            }
          }
        if (!kTwoInFlight) wait();
        tile::fence_operands();
#pragma unroll
        for (int j = begin; j < begin + kEach; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b)
            tile::multiply_registers<N, Codes::kOperands>(d[b], a[batch % 2][j - begin][b],
                                                          x + j * tile::kNext16, 1);
        tile::commit_group();
      }
    }
  }

  // Whether this k block has another scale than the previous one; equal in the threads of a warp. A block of 128 columns is two k blocks.
  template <int kBlocks>
  static __device__ __forceinline__ bool changes_scale(const typename Codes::Block (&block)[kBlocks]) {
    bool changes = false;
    if constexpr (Codes::kRescales) {
      constexpr uint32_t kOne = 0x3f800000;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) changes |= block[b].factor.x != kOne || block[b].factor.y != kOne;
    }
    return uniform(changes) != 0;
  }

  // Divides the sums of all previous k blocks by this block's scale, so that they are in its units. No wgmma may be in flight.
  template <int N, class C>
  static __device__ __forceinline__ void rescale(float (&d)[C::kBlocks][N / 2],
                                                 const typename Codes::Block (&block)[C::kBlocks]) {
    if constexpr (Codes::kRescales) {
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b) {
        tile::hold(d[b]);
        const float factor[2] = {__uint_as_float(block[b].factor.x), __uint_as_float(block[b].factor.y)};
#pragma unroll
        for (int i = 0; i < N / 2; ++i) d[b][i] *= factor[i % 4 / 2];
      }
    }
  }
  template <class C>
  static __device__ __forceinline__ void keep_scales(const typename Codes::Block (&block)[C::kBlocks],
                                                     Scales<C>& scales_of) {
    if constexpr (Codes::kRescales) {
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b)
        scales_of.of[b][0] = __uint_as_float(block[b].scale.x),
        scales_of.of[b][1] = __uint_as_float(block[b].scale.y);
    }
  }
};

using Mxfp4Blocks = DecodedBlocks<Mxfp4Codes>;

// Mainloop of one tile for bf16: two wgmma groups are in flight, one per k block. d: sums of N or more rows of x.
struct Bf16Blocks {
  static constexpr bool kDecodes = false, kStaggers = false;
  static constexpr int kBlocksOfRow = 1;
  static constexpr int kCodeBytes = static_cast<int>(fragment_code_bytes(DType::kBF16)), kScaleBytes = 0;

  template <int N, class C, int kSums>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][kSums], int k_blocks,
                                                      TileRing<C>& ring) {
    const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t previous = 0;
#pragma unroll 1
    for (int k = 0; k < k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, k_blocks - k);
      ring.wait_full();
      if constexpr (!C::kBoxes) tile::fence_for_async();
      // Uniform, so that descriptors are computed in uniform registers.
      const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
      const uint32_t weights = stage + C::kWeights + group * C::kBlocks * C::kSteps * C::kBlockBytes;
#pragma unroll
      for (int step = 0; step < C::kSteps; ++step) {
        if (step > 0 && step >= steps) break;
        const uint64_t x = tile::describe_tile(stage + step * C::kXBytes);
        const uint64_t w = tile::describe_tile(weights + step * C::kBlockBytes);
        tile::fence_operands();
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b)
            tile::multiply<N>(reinterpret_cast<float(&)[N / 2]>(d[b]),
                              w + b * (C::kSteps * C::kBlockBytes / tile::kDescribed) + j * tile::kNext16,
                              x + j * tile::kNext16, 1);
        tile::commit_group();
        tile::wait_groups<1>();
        // The products that read the previous stage are done.
        if (step == 0) ring.release(previous, k > 0);
      }
      previous = ring.place.stage;
      ring.place.step(stages);
    }
    return previous;
  }
};

#endif

}  // namespace sluice::cuda
