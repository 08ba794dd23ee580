// Converts e4m3 codes in the layout `fragments` (ops/fragment_layout.h) to
// wgmma registers in bf16: 16 instructions for 8 weights. Also computes the multipliers
// of nv formats (one scale per 16 columns) and the factors of row sums for mx.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "backends/cuda/tile/mxfp4.cuh"
#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// Decodes 8 codes (two rows, four values of k each) to the A operand of one k16 step. scale: the multipliers of the two rows.
__device__ __forceinline__ void decode_fragment8(uint32_t (&a)[4], uint32_t row, uint32_t row_below,
                                                 __nv_bfloat162 scale) {
  const __nv_bfloat162 of_row = __low2bfloat162(scale), below = __high2bfloat162(scale);
  a[0] = scaled(fragment_pair8(row, 0), of_row);
  a[1] = scaled(fragment_pair8(row_below, 0), below);
  a[2] = scaled(fragment_pair8(row, 1), of_row);
  a[3] = scaled(fragment_pair8(row_below, 1), below);
}

__device__ __forceinline__ __nv_bfloat162 as_pair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
// 2^120 for both rows: turns shifted e4m3 bits into their values.
__device__ __forceinline__ __nv_bfloat162 value_pair() { return as_pair(0x7B807B80u); }

// nv scales: the multipliers of k16 step kStep for this thread's row (low half)
// and for the row 8 below it, from the word that holds the scales of two steps.
template <int kStep>
__device__ __forceinline__ __nv_bfloat162 nv_pair(uint32_t word) {
  return as_pair(__byte_perm(word, 0, kStep % 2 == 0 ? 0x4140 : 0x4342) << 4 | 0x70007000u);
}

// For e4m3 codes with mx scales: 2^(top - 134), the factor of a row's sum, from the row's largest scale.
__device__ __forceinline__ float row_factor8(uint32_t top) {
  return __uint_as_float(top >= 8 ? (top - 7) << 23 : 0x00008000u << top);
}

}  // namespace sluice::cuda::tile
