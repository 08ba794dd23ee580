// Conversions of e4m3 values (base/dtype.h) in registers. f16 and bf16 represent every e4m3 value exactly. NaN stays NaN.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::tile {

// Converts the four values of a word to two pairs of f16, in order.
__device__ __forceinline__ void f16_of_e4m3(uint32_t word, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 a, b;\n"
      "mov.b32 {a, b}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}
__device__ __forceinline__ float2 f32_of_f16(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
// Converts the four values of a word, through f32, to two pairs of bf16, in order.
__device__ __forceinline__ void bf16_of_e4m3(uint32_t word, uint32_t& low, uint32_t& high) {
  uint32_t pair[2];
  f16_of_e4m3(word, pair[0], pair[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __nv_bfloat162 both = __float22bfloat162_rn(f32_of_f16(pair[i]));
    (i == 0 ? low : high) = *reinterpret_cast<const uint32_t*>(&both);
  }
}

// True if one of the four values is NaN. The additions cannot carry from one byte to the next.
__device__ __forceinline__ bool any_nan_of_e4m3(uint32_t word) {
  return (((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0;
}
// Converts 16 values to bf16, in order. The bits of an e4m3 value, shifted to the fields of bf16, represent the value times 2^-120;
// multiplying by 2^120 is exact, also for subnormal numbers. NaN would become 480, so words with a NaN are converted through f32.
__device__ __forceinline__ void bf16_of_e4m3(const uint4& bytes, uint4 (&out)[2]) {
  constexpr uint32_t kScale = 0x7b807b80;  // 2^120, twice
  const uint32_t from[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  uint32_t to[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Moves each value to the upper byte of a 16-bit half.
    const uint32_t two = __byte_perm(from[i / 2], 0, i % 2 ? 0x3424 : 0x1404);
    const uint32_t moved = (two & 0x80008000u) | (two >> 4 & 0x07f007f0u);
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(to[i]) : "r"(moved), "r"(kScale));
  }
  bool any_nan = false;
#pragma unroll
  for (const uint32_t word : from) any_nan |= any_nan_of_e4m3(word);
  if (any_nan) {
#pragma unroll
    for (int i = 0; i < 4; ++i) bf16_of_e4m3(from[i], to[2 * i], to[2 * i + 1]);
  }
  out[0] = make_uint4(to[0], to[1], to[2], to[3]), out[1] = make_uint4(to[4], to[5], to[6], to[7]);
}

// Two values as f16 in a word, the first in the low half.
__device__ __forceinline__ uint32_t f16_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float to_f32(E4M3 value) {
  uint32_t low, high;
  f16_of_e4m3(value.bits, low, high);
  return f32_of_f16(low).x;
}
// Rounds in the same way as to_e4m3().
template <>
__device__ __forceinline__ E4M3 from_f32<E4M3>(float value) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(value));
  return {static_cast<uint8_t>(pair)};
}

}  // namespace sluice::cuda::tile
