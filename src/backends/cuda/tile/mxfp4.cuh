// Converts MXFP4 weights in the layout `fragments` (ops/fragment_layout.h) to wgmma registers: 12 instructions for 8 weights.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "ops/fragment_layout.h"

namespace sluice::cuda::tile {

// The scales of group kGroup of 32 values of k, as bf16: of this thread's row (low half) and of the row
// 8 below it (high half). word: the thread's word of the scale block. A scale byte becomes the exponent
// field. 255 (NaN) would give infinity, but the codes stored with it are zero, so the product is NaN.
template <int kGroup>
__device__ __forceinline__ __nv_bfloat162 scale_pair(uint32_t word) {
  const uint32_t bits = __byte_perm(word, 0, kGroup == 0 ? 0x4140 : 0x4342) << 7;
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

__device__ __forceinline__ uint32_t scaled(uint32_t codes, __nv_bfloat162 scale) {
  const __nv_bfloat162 out = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&codes), scale);
  return *reinterpret_cast<const uint32_t*>(&out);
}

// Decodes 8 codes (two rows, four values of k each) to the A operand of one k16 step.
__device__ __forceinline__ void decode_fragment(uint32_t (&a)[4], uint32_t word, __nv_bfloat162 scale) {
  const __nv_bfloat162 upper = __low2bfloat162(scale), lower = __high2bfloat162(scale);
  a[0] = scaled(fragment_pair(word, 0), upper);
  a[1] = scaled(fragment_pair(word, 1), lower);
  a[2] = scaled(fragment_pair(word, 2), upper);
  a[3] = scaled(fragment_pair(word, 3), lower);
}

// 2^(top - 128), the factor of a row's sum; top: the row's largest scale byte.
__device__ __forceinline__ float row_factor(uint32_t top) {
  return __uint_as_float(top >= 2 ? (top - 1) << 23 : 0x00200000u << top);
}

}  // namespace sluice::cuda::tile
