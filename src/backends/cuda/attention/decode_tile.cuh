// Attention of few queries: 16 keys, or 16 values, of one head in shared memory, and their products, for caches of bf16 and of e4m3.
//
// Both tile types have the same functions. A tile is rows of 128 bytes, swizzled by TMA (swizzle.cuh). Accumulators are
// as in mma.cuh. A tile type may permute the elements of a head over the columns; store_row() restores their order.
//
// Bf16Tile: keys and values are used as they are loaded. A weight is a sum of two bf16 terms.
//
// E4m3Tile: half the bytes, so the number of instructions per tile also matters. Keys become bf16, like the queries, through f16
// and f32 (tile/e4m3.cuh). Values become f16, two per instruction, and are multiplied by f16 weights. Weights are multiplied by
// 2^15, so those that f16 cannot represent are far below the largest (ops/attention.h has the bound). Both conversions are
// exact. A lane's four bytes of a key are operands of two products; its four bytes of two values belong to two columns.
#pragma once
#include <cuda.h>

#include "backends/cuda/attention/rows.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "backends/cuda/tile/mma.cuh"
#include "backends/cuda/tile/swizzle.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"

namespace sluice::cuda::attention {

constexpr int kTileKeys = 16;

template <int D>
struct Bf16Tile {
  static constexpr int kDim = D, kKeys = kTileKeys, kStages = 3, kFewStages = 2;
  static constexpr int kHalves = kDim / 64, kHalfBytes = kKeys * tile::kSwizzledRowBytes;
  static constexpr int kBytes = kHalves * kHalfBytes;

  // row: of the first key, in rows of one head.
  static __device__ __forceinline__ void fetch(uint32_t to, const CUtensorMap& map, int row,
                                               uint32_t barrier) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      tile::copy_box(to + half * kHalfBytes, map, 64 * half, row, barrier);
  }
  // Index, among 16, of the first of the two adjacent query elements in register 2 * half of lane c.
  static __device__ __forceinline__ int query_place(int half, int c) { return 8 * half + 2 * c; }

  template <int kGroups>
  static __device__ __forceinline__ void score(float (&score)[kGroups][2][4],
                                               const uint32_t (&query)[kGroups][kDim / 16][4],
                                               uint32_t keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      uint32_t key[4];
      tile::load_matrices(key, at_of(keys, lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        tile::mma(score[i][0], query[i][k], {key[0], key[1]});
        tile::mma(score[i][1], query[i][k], {key[2], key[3]});
      }
    }
  }
  // kept: masks for the values of keys 2c and 2c + 1; of keys 2c + 8 and 2c + 9.
  template <int kGroups>
  static __device__ __forceinline__ void add_values(float (&value)[kGroups][kDim / 8][4],
                                                    const float (&weight)[kGroups][2][4], uint32_t values,
                                                    const uint32_t (&kept)[2]) {
    uint32_t high[kGroups][4], low[kGroups][4];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float a = weight[i][r / 2][2 * (r % 2)], b = weight[i][r / 2][2 * (r % 2) + 1];
        high[i][r] = pack(a, b);
        low[i][r] = pack(a - low_of(high[i][r]), b - high_of(high[i][r]));
      }
    }
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t v[4];
      load_values(v, values, n);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t b[2] = {v[2 * m] & kept[0], v[2 * m + 1] & kept[1]};
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          tile::mma(value[i][n + m], high[i], b);
          tile::mma(value[i][n + m], low[i], b);
        }
      }
    }
  }
  // Adds weight x (the values of one key) to this lane's row r (0 or 1), if that row's query attends to the key.
  static __device__ __forceinline__ void add_one(float (&value)[kDim / 8][4], int r, bool sees, float weight,
                                                 uint32_t values, int key, int c) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      const uint32_t pair = tile::load_shared_word(at_of(values, key, n) + 4 * c);
      if (!sees) continue;
      value[n][2 * r] += weight * low_of(pair);
      value[n][2 * r + 1] += weight * high_of(pair);
    }
  }
  // Stores this lane's row r (0 or 1) to `to`, in the order of the elements of a head.
  static __device__ __forceinline__ void store_row(const float (&value)[kDim / 8][4], int r, int c,
                                                   float* to) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * n + 2 * c) = make_float2(value[n][2 * r], value[n][2 * r + 1]);
  }

 private:
  // Address of 16-byte chunk `chunk` of key `key`.
  static __device__ __forceinline__ uint32_t at_of(uint32_t tile, int key, int chunk) {
    return tile + chunk / 8 * kHalfBytes +
           tile::swizzled(static_cast<uint32_t>(key), static_cast<uint32_t>(chunk % 8 * 16));
  }
  // Loads columns 8 n to 8 n + 15 of the values of all 16 keys, as two B operands.
  static __device__ __forceinline__ void load_values(uint32_t (&v)[4], uint32_t values, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tile::load_matrices_transposed(v, at_of(values, lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
  }
};

template <int D>
struct E4m3Tile {
  static constexpr int kDim = D, kKeys = kTileKeys, kStages = 6, kFewStages = 4;
  static constexpr int kBytes = kKeys * kDim;
  static constexpr int kKeysARow = tile::kSwizzledRowBytes / kDim;  // keys in 128 bytes
  static constexpr float kWeightUnit = 0x1p15f;

  static __device__ __forceinline__ void fetch(uint32_t to, const CUtensorMap& map, int row,
                                               uint32_t barrier) {
    tile::copy_box(to, map, 0, row / kKeysARow, barrier);
  }
  // A lane's four bytes of a key are elements 4c to 4c + 3 of 16, so its query elements are these, too.
  static __device__ __forceinline__ int query_place(int half, int c) { return 4 * c + 2 * half; }

  template <int kGroups>
  static __device__ __forceinline__ void score(float (&score)[kGroups][2][4],
                                               const uint32_t (&query)[kGroups][kDim / 16][4],
                                               uint32_t keys) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int k = 0; k < kDim / 16; k += 2) {
      uint32_t key[4];
      tile::load_matrices(key, at_of(keys, lane / 16 * 8 + lane % 8, k + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          uint32_t b[2];
          tile::bf16_of_e4m3(key[2 * n + m], b[0], b[1]);
#pragma unroll
          for (int i = 0; i < kGroups; ++i) tile::mma(score[i][n], query[i][k + m], b);
        }
      }
    }
  }
  template <int kGroups>
  static __device__ __forceinline__ void add_values(float (&value)[kGroups][kDim / 8][4],
                                                    const float (&weight)[kGroups][2][4], uint32_t values,
                                                    const uint32_t (&kept)[2]) {
    uint32_t units[kGroups][4];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        units[i][r] = tile::f16_pair(kWeightUnit * weight[i][r / 2][2 * (r % 2)],
                                     kWeightUnit * weight[i][r / 2][2 * (r % 2) + 1]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; n += 2) {
      uint32_t v[4];
      load_values(v, values, n);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t even[2], odd[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          tile::f16_of_e4m3(__byte_perm(v[2 * m + half] & kept[half], 0, 0x3120), even[half], odd[half]);
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          tile::mma_f16(value[i][2 * (n + m)], units[i], even);
          tile::mma_f16(value[i][2 * (n + m) + 1], units[i], odd);
        }
      }
    }
  }
  static __device__ __forceinline__ void add_one(float (&value)[kDim / 8][4], int r, bool sees, float weight,
                                                 uint32_t values, int key, int c) {
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t low, high;
      tile::f16_of_e4m3(tile::load_shared_word(at_of(values, key, n) + 4 * c), low, high);
      if (!sees) continue;
      const float2 first = tile::f32_of_f16(low), second = tile::f32_of_f16(high);
      value[2 * n][2 * r] += kWeightUnit * weight * first.x;
      value[2 * n + 1][2 * r] += kWeightUnit * weight * first.y;
      value[2 * n][2 * r + 1] += kWeightUnit * weight * second.x;
      value[2 * n + 1][2 * r + 1] += kWeightUnit * weight * second.y;
    }
  }
  static __device__ __forceinline__ void store_row(const float (&value)[kDim / 8][4], int r, int c,
                                                   float* to) {
    constexpr float kUnit = 1 / kWeightUnit;
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n)
      *reinterpret_cast<float4*>(to + 16 * n + 4 * c) =
          make_float4(kUnit * value[2 * n][2 * r], kUnit * value[2 * n + 1][2 * r],
                      kUnit * value[2 * n][2 * r + 1], kUnit * value[2 * n + 1][2 * r + 1]);
  }

 private:
  static __device__ __forceinline__ uint32_t at_of(uint32_t tile, int key, int chunk) {
    return tile + tile::swizzled(static_cast<uint32_t>(key / kKeysARow),
                                 static_cast<uint32_t>(key % kKeysARow * kDim + chunk * 16));
  }
  // Loads columns 16 n to 16 n + 31 of the values of all 16 keys; each half of a word has two adjacent columns.
  static __device__ __forceinline__ void load_values(uint32_t (&v)[4], uint32_t values, int n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tile::load_matrices_transposed(v, at_of(values, lane / 8 % 2 * 8 + lane % 8, n + lane / 16));
  }
};

}  // namespace sluice::cuda::attention
