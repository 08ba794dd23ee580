// The weight formats of stream.cuh: how a stage stores k blocks of 64 weight rows in the layout `fragments`, and how a consumer warp loads
// one slab (16 rows) of one k block and multiplies it by N rows of x.
#pragma once
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/mxfp4.cuh"
#include "backends/cuda/tile/shared.cuh"
#include "backends/cuda/tile/swizzle.cuh"

namespace sluice::cuda {

// A lane's part of a k block of x: N rows of 128 bytes, swizzled. `half` selects the first or second 32 elements of a row.
template <int N>
struct ColumnsOfX {
  uint32_t b[N / 8][2][4];

  __device__ __forceinline__ void load(const uint32_t (&x)[2]) {
#pragma unroll
    for (uint32_t n = 0; n < N / 8; ++n)
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) tile::load_matrices(b[n][half], x[half] + n * 1024);
  }
  // Even and odd j have separate accumulators, so that their products do not depend on each other.
  __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4], const uint32_t (&a)[4], int j) const {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
      const uint32_t column[2] = {b[n][j / 2][j % 2 * 2], b[n][j / 2][j % 2 * 2 + 1]};
      tile::mma(d[j % 2][n], a, column);
    }
  }
};

struct Mxfp4Weights {
  static constexpr bool kScaled = true;  // a sum is multiplied by its row's factor
  static constexpr int kCodeBytes = static_cast<int>(kFragmentCodeBytes),
                       kScaleBytes = static_cast<int>(kFragmentScaleBytes);  // per k block
  // k blocks per stage, and bytes of a team's ring: two CTAs of two teams, with their other shared memory, fill an SM.
  static constexpr int steps(int n) { return n == 8 ? 4 : 2; }
  static constexpr int ring_bytes(int n) { return (n == 8 ? 105 : 88) << 9; }

  // Offsets of a lane's codes and scales in a k block.
  __device__ static __forceinline__ uint32_t codes_at(uint32_t slab, uint32_t lane) {
    return (slab * 32 + lane) * 16;
  }
  __device__ static __forceinline__ uint32_t scales_at(uint32_t slab, uint32_t lane) {
    return (slab * 8 + lane / 4) * 4;
  }

  template <int N>
  struct Operands {
    uint4 code;
    uint32_t scale;
    ColumnsOfX<N> x;

    __device__ __forceinline__ void load(uint32_t codes, uint32_t scales, const uint32_t (&x_at)[2]) {
      code = tile::load_shared(codes);
      scale = tile::load_shared_word(scales);
      x.load(x_at);
    }
    __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4]) const {
      const __nv_bfloat162 scales[2] = {tile::scale_pair<0>(scale), tile::scale_pair<1>(scale)};
      const uint32_t words[4] = {code.x, code.y, code.z, code.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        tile::decode_fragment(a, words[j], scales[j / 2]);
        x.multiply(d, a, j);
      }
    }
  };
};

struct Bf16Weights {
  static constexpr bool kScaled = false;
  static constexpr int kCodeBytes = static_cast<int>(2 * kFragmentBf16Elements), kScaleBytes = 0;
  static constexpr int steps(int) { return 1; }
  static constexpr int ring_bytes(int) { return 98 << 9; }

  // Row lane % 16 of the slab, its first or second 16-byte chunk, swizzled. The chunks of product j are 32 * j bytes further.
  __device__ static __forceinline__ uint32_t codes_at(uint32_t slab, uint32_t lane) {
    return slab * 16 * tile::kSwizzledRowBytes + tile::swizzled(lane % 16, lane / 16 * 16);
  }
  __device__ static __forceinline__ uint32_t scales_at(uint32_t, uint32_t) { return 0; }

  template <int N>
  struct Operands {
    uint32_t a[4][4];
    ColumnsOfX<N> x;

    __device__ __forceinline__ void load(uint32_t codes, uint32_t, const uint32_t (&x_at)[2]) {
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) tile::load_matrices(a[j], codes ^ j * 32);
      x.load(x_at);
    }
    __device__ __forceinline__ void multiply(float (&d)[2][N / 8][4]) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) x.multiply(d, a[j], j);
    }
  };
};

}  // namespace sluice::cuda
