// mma.sync: a warp-wide product of bf16 or f16 with f32 accumulators. Operands can be loaded directly from global memory.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// d[16, 8] += a[16, 16] * b[8, 16]^T by one warp; g = lane / 4, c = lane % 4. A register has two adjacent values in k:
// a  {row g, k 2c}, {row g + 8, k 2c}, {row g, k 2c + 8}, {row g + 8, k 2c + 8}
// b  {row g, k 2c}, {row g, k 2c + 8}
// d  {row g, column 2c}, {row g, column 2c + 1}, {row g + 8, column 2c}, {row g + 8, column 2c + 1}
//
// k may be permuted if both operands use the same permutation. So a lane that loads the 16 bytes
// (8 values) at k = 8c of row g has operands of two products: words 0 and 1 for the first, 2 and 3
// for the second. Four lanes cover 32 values of a row, and nothing passes through shared memory.
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same for f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix: loads four matrices of 8 rows x 16 bytes from shared memory. Lane l passes the address (aligned to 16) of row l % 8 of
// matrix l / 8, and gets from each matrix the 4 bytes at byte 4 * (l % 4) of row l / 4. Two matrices are an operand b of mma().
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// ldmatrix.trans: the same, but a lane gets elements 2 * (l % 4) and 2 * (l % 4) + 1 of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

}  // namespace sluice::cuda::tile
