// The weight formats of stream.cuh: how a stage stores k blocks of 64 weight rows in the layout `fragments`,
// and how a consumer warp loads a slab (16 rows) of a k block and multiplies it by N rows of x.
#pragma once
#include "backends/cuda/experts/codes.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/shared.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {

// A lane's part of a k block of x: N swizzled rows of 128 bytes. `half`: the first or second 32 elements of a row.
template <int N>
struct ColumnsOfX {
  uint32_t b[N / 8][2][4];

  __device__ __forceinline__ void load(const uint32_t (&x)[2]) {
#pragma unroll
    for (uint32_t n = 0; n < N / 8; ++n)
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) tile::load_matrices(b[n][half], x[half] + n * 1024);
  }
  // Even and odd j add to different accumulators, so that consecutive products do not wait for each other.
  __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4], const uint32_t (&a)[4], int j) const {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
      const uint32_t column[2] = {b[n][j / 2][j % 2 * 2], b[n][j / 2][j % 2 * 2 + 1]};
      tile::mma(d[j % 2][n], a, column);
    }
  }
};

// Weight formats whose codes are decoded in registers (codes.cuh).
template <class Codes>
struct DecodedWeights : Codes {
  static constexpr bool kScaled = true;  // a sum is multiplied by its row's factor
  // k blocks per stage, and bytes of a team's ring. Two CTAs of two teams, with the rest of their shared memory, fill an SM.
  static constexpr int steps(int n) { return (n == 8 ? 4 : 2) / (Codes::kFormat.w == DType::kE4M3 ? 2 : 1); }
  static constexpr int ring_bytes(int n) { return (n == 8 ? 105 : 88) << 9; }

  // With Codes::kRescales: the scales of the lane's two rows in the last k block that was multiplied.
  struct Unit {
    float scale[2] = {1, 1};
    // Multiplies the sums, which are in units of the last scales, by those scales.
    template <int N>
    __device__ __forceinline__ void apply(float (&sum)[N]) const {
      if constexpr (Codes::kRescales) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] *= scale[i % 4 / 2];
      }
    }
  };

  template <int N>
  struct Operands {
    typename Codes::Block block;
    ColumnsOfX<N> x;

    __device__ __forceinline__ void load(uint32_t codes, uint32_t scales, const uint32_t (&x_at)[2]) {
      block.load(codes, scales);
      x.load(x_at);
    }
    __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4], Unit& unit) const {
      if constexpr (Codes::kRescales) {
        const float factor[2] = {__uint_as_float(block.factor.x), __uint_as_float(block.factor.y)};
        unit.scale[0] = __uint_as_float(block.scale.x), unit.scale[1] = __uint_as_float(block.scale.y);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) d[0][n][i] *= factor[i / 2], d[1][n][i] *= factor[i / 2];
      }
      step<0>(d), step<1>(d), step<2>(d), step<3>(d);
    }
    template <int kStep>
    __device__ __forceinline__ void step(float (&d)[2][N / 8][4]) const {
      uint32_t a[4];
      block.template decode<kStep>(a);
      x.multiply(d, a, kStep);
    }
  };
};
using Mxfp4Weights = DecodedWeights<Mxfp4Codes>;

struct Bf16Weights {
  static constexpr bool kScaled = false, kRescales = false, kHasFactors = false;
  static constexpr int kCodeBytes = static_cast<int>(2 * kFragmentBf16Elements), kScaleBytes = 0;
  static constexpr int steps(int) { return 1; }
  static constexpr int ring_bytes(int) { return 98 << 9; }

  // The lane's address for ldmatrix: row lane % 16 of the slab, 16-byte chunk lane / 16, swizzled. Product j adds 32 * j bytes.
  __device__ static __forceinline__ uint32_t codes_at(uint32_t slab, uint32_t lane) {
    return slab * 16 * tile::kSwizzledRowBytes + tile::swizzled(lane % 16, lane / 16 * 16);
  }
  __device__ static __forceinline__ uint32_t scales_at(uint32_t, uint32_t) { return 0; }

  struct Unit {
    template <int N>
    __device__ __forceinline__ void apply(float (&)[N]) const {}
  };
  // bf16 rows have no factor.
  static __device__ __forceinline__ float factor(uint32_t, int) { return 1; }

  template <int N>
  struct Operands {
    uint32_t a[4][4];
    ColumnsOfX<N> x;

    __device__ __forceinline__ void load(uint32_t codes, uint32_t, const uint32_t (&x_at)[2]) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) tile::load_matrices(a[j], codes ^ j * 32);
      x.load(x_at);
    }
    __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4], Unit&) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) x.multiply(d, a[j], j);
    }
  };
};

}  // namespace sluice::cuda
