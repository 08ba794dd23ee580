// Access to shared memory by 32-bit addresses.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_word(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
// A counter in shared memory without a barrier: one lane of one warp adds, and one lane of
// each other warp polls. Both are atomic, so that compute-sanitizer's racecheck accepts them.
__device__ __forceinline__ void add_shared_count(uint32_t address, uint32_t n) {
  asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(address), "r"(n) : "memory");
}
__device__ __forceinline__ uint32_t look_at_shared_count(uint32_t address) {
  uint32_t v;
  asm volatile("atom.relaxed.cta.shared.add.u32 %0, [%1], 0;" : "=r"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// stmatrix: a warp stores four 8 x 8 matrices of bf16. pairs[m] of lane l is elements 2 * (l % 4) and 2 *
// (l % 4) + 1 of row l / 4 of matrix m. Lane 8 m + r passes the address of row r (16 bytes) of matrix m.
__device__ __forceinline__ void store_squares(uint32_t address, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}
// stmatrix.trans: a warp stores four 8 x 8 matrices of bf16 transposed. pairs[m] of lane l is elements 2 * (l % 4)
// and 2 * (l % 4) + 1 of row l / 4 of matrix m. Lane 8 m + r passes the address of column r (16 bytes) of matrix m.
__device__ __forceinline__ void store_squares_transposed(uint32_t address, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

}  // namespace sluice::cuda::tile
