// wgmma with A in registers, for a tile of B in shared memory that has one row per value of k, as a KV cache stores values:
//   d[64, N] += a[64, 16] * b[16, N]
//
// d, a and the order of calls are as in wgmma_registers.cuh.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/wgmma_registers.cuh"

namespace sluice::cuda::tile {

// The descriptor of a tile of 128-byte rows (64 columns), one row per value of k, swizzled as in swizzle.cuh.
// Columns 64 to 127 are a second tile, `next_columns` bytes further. Add kNextRows16 to advance by 16 values of k.
__device__ __forceinline__ uint64_t describe_columns(uint32_t shared, uint32_t next_columns) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupsOf8Rows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupsOf8Rows | static_cast<uint64_t>(next_columns / 16) << 16 |
         (shared & 0x3ffff) >> 4;
}
constexpr uint64_t kNextRows16 = 16 * 128 / kDescribed;

template <int N>
struct MultiplyColumns;

#define SLUICE_MULTIPLY(N, names, operands, a0, a1, a2, a3, b_operand)                                      \
  template <>                                                                                               \
  struct MultiplyColumns<N> {                                                                               \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {     \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" names "}, {%" #a0 ", %" #a1 \
                   ", %" #a2 ", %" #a3 "}, %" #b_operand ", 1, 1, 1, 1;"                                    \
                   : operands                                                                               \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                   \
    }                                                                                                       \
  };
#define SLUICE_EIGHTS(...) __VA_ARGS__
SLUICE_MULTIPLY(64, SLUICE_LIST_4, SLUICE_EIGHTS(SLUICE_OPERANDS_4), 32, 33, 34, 35, 36)
SLUICE_MULTIPLY(72, SLUICE_LIST_4 ", %32, %33, %34, %35",
                SLUICE_EIGHTS(SLUICE_OPERANDS_4, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])), 36, 37,
                38, 39, 40)
SLUICE_MULTIPLY(128, SLUICE_LIST_8, SLUICE_EIGHTS(SLUICE_OPERANDS_8), 64, 65, 66, 67, 68)
#undef SLUICE_MULTIPLY
#undef SLUICE_EIGHTS

template <int N>
__device__ __forceinline__ void multiply_columns(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {
  MultiplyColumns<N>::run(d, a, b);
}

}  // namespace sluice::cuda::tile
