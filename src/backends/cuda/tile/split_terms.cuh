// Splits f32 values into bf16 terms (Terms in operand.cuh), two
// adjacent values at a time, for wgmma operands in registers.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/operand.cuh"

namespace sluice::cuda::tile {

constexpr int kTermsOfF32 = Terms<float>::kCount;

__device__ __forceinline__ float2 load_shared_floats(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// term[0] has the largest terms. v.x is in the low half of each word.
__device__ __forceinline__ void split_terms(uint32_t (&term)[kTermsOfF32], float2 v) {
  const auto pack = [](float2 f) { return __byte_perm(__float_as_uint(f.x), __float_as_uint(f.y), 0x7632); };
  // A remainder is never infinite, so its own remainder needs no check for infinity.
  const auto left = [](float f) { return f - __uint_as_float(__float_as_uint(f) & 0xffff0000u); };
  term[0] = pack(v);
  v = make_float2(remainder_of(v.x), remainder_of(v.y));
  term[1] = pack(v);
  term[2] = pack(make_float2(left(v.x), left(v.y)));
}

}  // namespace sluice::cuda::tile
