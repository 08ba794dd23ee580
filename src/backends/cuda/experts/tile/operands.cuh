// Mainloop of the tile kernels (tiles.cuh) for codes that are operands of wgmma as they are: FP8 weights by FP8 rows of x.
#pragma once
#include "backends/cuda/experts/tile/consumer.cuh"

namespace sluice::cuda {

#ifdef __CUDACC__

// Mainloop of one tile. A warpgroup issues the products of a whole stage together. It waits for them before it loads the next
// stage's codes and changes the scale of its sums; meanwhile the tensor cores multiply for the other warpgroup. The second
// warpgroup starts a few stages later, so that the epilogues of the two are not at the same time either (TileRing::step).
template <class Codes>
struct OperandBlocks : DecodedBlocks<Codes> {
  using Base = DecodedBlocks<Codes>;
  template <class C>
  using Scales = typename Base::template Scales<C>;
  static constexpr bool kStaggers = true;

  // Returns the last stage; the caller releases it when its products are done.
  template <int N, class C>
  static __device__ __forceinline__ uint32_t multiply(float (&d)[C::kBlocks][N / 2], int k_blocks,
                                                      TileRing<C>& ring, Scales<C>& scales_of) {
    static_assert(C::kGroups == 2 && C::kBlocks == 1 && C::kSteps == 2);
    const int tid = static_cast<int>(threadIdx.x % 128),
              group = uniform(static_cast<int>(threadIdx.x / 128)) - 1;
    const int warp = tid / 32, lane = tid % 32;
    uint32_t words = C::kWeights + group * C::kSteps * C::kBlockBytes + Codes::codes_at(warp, lane);
    uint32_t scales = C::kScales + group * C::kSteps * C::kScaleBytes + Codes::scales_at(warp, lane);
    asm volatile("" : "+r"(words), "+r"(scales));  // otherwise recomputed in every stage
    uint32_t previous = 0;
#pragma unroll 1
    for (int k = 0; k < k_blocks; k += C::kSteps) {
      const uint32_t stage = Base::wait_full(ring);
      multiply_stage<N>(d[0], ring, {stage + words, stage + scales, tile::describe_tile(stage)},
                        k_blocks - k >= C::kSteps, previous, k > 0);
      previous = ring.place.stage;
      ring.step();
    }
    if constexpr (Codes::kRescales) {
      const uint32_t last = ring.base + previous * static_cast<uint32_t>(C::kStageBytes) + scales +
                            (k_blocks - 1) % C::kSteps * C::kScaleBytes;
      const uint2 scale = tile::load_shared_pair(last);
      scales_of.of[0][0] = __uint_as_float(scale.x), scales_of.of[0][1] = __uint_as_float(scale.y);
    }
    return previous;
  }

 private:
  // The factors of a k block's four groups of rows, of which the thread has two.
  struct Factors {
    uint32_t mine[2];
    uint32_t change = 0;  // equal in all threads of the warpgroup, which issue the same products

    __device__ __forceinline__ void load(uint32_t at) {
      if constexpr (Codes::kRescales) {
        constexpr uint32_t kOne = 0x3f800000;
        const uint2 two = tile::load_shared_pair(at + 16), others = tile::load_shared_pair((at ^ 8) + 16);
        mine[0] = two.x, mine[1] = two.y;
        change = (two.x ^ kOne) | (two.y ^ kOne) | (others.x ^ kOne) | (others.y ^ kOne);
      }
    }
    // Divides the sums of all previous k blocks by this block's scale. No wgmma may be in flight.
    template <int kSums>
    __device__ __forceinline__ void apply(float (&d)[kSums]) const {
      if constexpr (!Codes::kRescales) return;
      tile::hold(d);
      const float factor[2] = {__uint_as_float(mine[0]), __uint_as_float(mine[1])};
#pragma unroll
      for (int i = 0; i < kSums; ++i) d[i] *= factor[i % 4 / 2];
    }
  };

  // Multiplies a stage: two k blocks if it is full, otherwise one. If `releases`, releases stage `previous` once the products that
  // read it are done.
  template <int N, class C>
  static __device__ __forceinline__ void multiply_stage(float (&d)[N / 2], const TileRing<C>& ring,
                                                        const typename Base::Step& at, bool full,
                                                        uint32_t previous, bool releases) {
    Factors first, second;
    first.load(at.scales), second.load(at.scales + C::kScaleBytes);
    const bool simple = full && !__any_sync(0xffffffffu, second.change != 0);
    tile::wait_groups<0>();
    ring.release(previous, releases);
    CodeWords8 codes[2];
    codes[0].load(at.words);
    if (simple) {
      codes[1].load(at.words + C::kBlockBytes);
      first.apply(d);
      tile::fence_operands();
      issue<N, C>(d, codes[0], at.x), issue<N, C>(d, codes[1], at.x + Base::template x_of<C>(1));
      tile::commit_group();
      return;
    }
    // The sums change their scale inside the stage, or it has one k block.
#pragma unroll 1
    for (int step = 0; step < (full ? 2 : 1); ++step) {
      if (step > 0) codes[0].load(at.words + C::kBlockBytes), first = second;
      first.apply(d);
      tile::fence_operands();
      issue<N, C>(d, codes[0], at.x + (step > 0 ? Base::template x_of<C>(1) : 0));
      tile::commit_group();
      tile::wait_groups<0>();
    }
  }

  // Issues the products of a k block.
  template <int N, class C>
  static __device__ __forceinline__ void issue(float (&d)[N / 2], const CodeWords8& codes, uint64_t x) {
#pragma unroll
    for (int j = 0; j < Codes::kProducts; ++j) {
      const uint4& words = codes.words[j];
      const uint32_t a[4] = {words.x, words.y, words.z, words.w};
      tile::multiply_registers<N, Codes::kOperands>(d, a, x + j * tile::kNext16, 1);
    }
  }
};

#endif

}  // namespace sluice::cuda
