// The loops of the tile kernels' sums (expert_gemm_tile.cuh): a warpgroup's row blocks times a tile's rows of x, from the
// stages of the ring.
#pragma once
#include <cstdint>

#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/experts/ring.cuh"
#include "backends/cuda/tile/mbarrier.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Sums of one tile in codes: dequantised in registers while the tensor cores take what was dequantised before. Answers the
// last stage, which the caller gives back once its products are done. A branch between k blocks would keep the compiler from
// moving the loads and codes of one in between the products of the other, so only the last stage may have fewer.
struct Mxfp4Blocks {
  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2],
                                                      const ExpertParameters& p, TileRing<C>& ring) {
    const int tid = static_cast<int>(threadIdx.x % 128),
              group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const int warp = tid / 32, lane = tid % 32;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t words = C::kWeights + group * C::kBlocks * C::kSteps * C::kBlockBytes + tid * 16;
    uint32_t scales =
        C::kScales + group * C::kBlocks * C::kSteps * C::kScaleBytes + (warp * 8 + lane / 4) * 4;
    asm volatile("" : "+r"(words), "+r"(scales));  // else worked out again in each stage
    uint32_t before = 0;                           // the stage in front of this one
    int left = p.k_blocks;
#pragma unroll 1
    for (; left >= C::kSteps; left -= C::kSteps) {
      const uint32_t stage = wait_full(ring);
      multiply_steps<C::kSteps, N>(d, ring, {stage + words, stage + scales, tile::describe_tile(stage)},
                                   before, left < p.k_blocks);
      before = ring.place.stage;
      ring.place.step(stages);
    }
    if (left == 0) return before;
    const uint32_t stage = wait_full(ring);
    Step step{stage + words, stage + scales, tile::describe_tile(stage)};
    bool gives = left < p.k_blocks;
#pragma unroll 1
    for (; left > 0; --left, gives = false) {
      multiply_steps<1, N>(d, ring, step, before, gives);
      step.words += C::kBlockBytes, step.scales += C::kScaleBytes, step.x += C::kXBytes / tile::kDescribed;
    }
    before = ring.place.stage;
    ring.place.step(stages);
    return before;
  }

 private:
  // Where a thread's codes and scales of a k block are, for the first row block, and its x.
  struct Step {
    uint32_t words, scales;
    uint64_t x;
  };

  template <class C>
  static __device__ __forceinline__ uint32_t wait_full(const TileRing<C>& ring) {
    ring.wait_full();
    if constexpr (!C::kBoxes) tile::fence_for_async();
    // Uniform, so that descriptors are made outside of the lanes' registers.
    return static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
  }

  // kSteps k blocks from `first` on. Gives the stage `before` back, once what read it is done, if `gives`.
  template <int kSteps, int N, class C>
  static __device__ __forceinline__ void multiply_steps(float (&d)[C::kBlocks][N / 2],
                                                        const TileRing<C>& ring, const Step& first,
                                                        uint32_t before, bool gives) {
    // With two row blocks, a group of wgmma is two of the four 16-column steps, dequantised while the group in front is
    // under way: the fewest waits that leave ptxas enough registers. With one, one step, and a second group under way.
    constexpr bool kTwoUnderWay = C::kBlocks == 1;
    constexpr int kEach = kTwoUnderWay || kSteps == 1 ? 1 : 2, kGroupsOfStep = 4 / kEach;
    uint32_t a[2][kEach][C::kBlocks][4];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint4 code[C::kBlocks];
      uint32_t scale[C::kBlocks];
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b) {
        code[b] = tile::load_shared(first.words + (b * C::kSteps + step) * C::kBlockBytes);
        scale[b] = tile::load_shared_word(first.scales + (b * C::kSteps + step) * C::kScaleBytes);
      }
      const uint64_t x = first.x + step * (C::kXBytes / tile::kDescribed);
#pragma unroll
      for (int turn = step * kGroupsOfStep; turn < (step + 1) * kGroupsOfStep; ++turn) {
        const int begin = turn % kGroupsOfStep * kEach;
        const auto wait = [&] {
          if (turn == 0 || !kTwoUnderWay) {
            tile::wait_groups<0>();
          } else {
            tile::wait_groups<1>();
          }
          if (turn == 0) ring.release(before, gives);
        };
        if (kTwoUnderWay) wait();
#pragma unroll
        for (int j = begin; j < begin + kEach; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b) {
            const uint32_t word = j == 0 ? code[b].x : j == 1 ? code[b].y : j == 2 ? code[b].z : code[b].w;
            tile::decode_fragment(a[turn % 2][j - begin][b], word,
                                  j < 2 ? tile::scale_pair<0>(scale[b]) : tile::scale_pair<1>(scale[b]));
          }
        if (!kTwoUnderWay) wait();
        tile::fence_operands();
#pragma unroll
        for (int j = begin; j < begin + kEach; ++j)
#pragma unroll
          for (int b = 0; b < C::kBlocks; ++b)
            tile::multiply_registers<N>(d[b], a[turn % 2][j - begin][b], x + j * tile::kNext16, 1);
        tile::commit_group();
      }
    }
  }
};

// The same in bf16: a k block's products wait for none but those in front of them.
struct Bf16Blocks {
  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2],
                                                      const ExpertParameters& p, TileRing<C>& ring) {
    const int group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const auto stages = static_cast<uint32_t>(ring.at.stages);
    uint32_t before = 0;  // the stage in front of this one
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; k += C::kSteps) {
      const int steps = min(C::kSteps, p.k_blocks - k);
      ring.wait_full();
      if constexpr (!C::kBoxes) tile::fence_for_async();
      // Uniform, so that descriptors are made outside of the lanes' registers.
      const auto stage = static_cast<uint32_t>(uniform(static_cast<int>(ring.stage())));
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
        if (step == 0) ring.release(before, k > 0);
      }
      before = ring.place.stage;
      ring.place.step(stages);
    }
    return before;
  }
};

#endif

}  // namespace sluice::cuda
