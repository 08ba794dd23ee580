// wgmma with A in registers, so that weights which the warpgroup decodes do not pass through shared memory.
//
//   d[64, N] (+)= a[64, 16] * b[N, 16]^T
//
// d and the order of calls are as in wgmma.cuh. Thread t has these elements of a, as pairs of bf16 with the lower k in the low half:
//   a[0] = (row, k and k + 1), a[1] = (row + 8, k and k + 1), a[2] = (row, k + 8 and k + 9), a[3] = (row + 8, k + 8 and k + 9)
//   where row = 16 * (t / 32) + t % 32 / 4 and k = 2 * (t % 4).
// FP8: d[64, N] (+)= a[64, 32] * b[N, 32]^T, a in e4m3 or e5m2 and b in e4m3. Thread t has four bytes in each register, the lowest k first:
//   a[0] = (row, k to k + 3), a[1] = (row + 8, k to k + 3), a[2] = (row, k + 16 to k + 19), a[3] = (row + 8, k + 16 to k + 19)
//   where row is as above and k = 4 * (t % 4).
// The registers of a may be overwritten once the group that reads them has been waited for.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/wgmma.cuh"

namespace sluice::cuda::tile {

// The types of a and b.
enum class Operands { kBF16, kE4M3, kE5M2AndE4M3 };

// multiply_registers<N, kOperands>(d, a, b, add): add == 0 overwrites d. The FP8 forms exist for the N of kMxfp4Fp8Tiles
// and kE4m3Fp8Tiles.
template <int N, Operands kOperands>
struct MultiplyRegisters;

#define SLUICE_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

// N columns; names and operands of d; then the operand numbers of a (four), of b and of add. The types of a and b are SLUICE_TYPES,
// which the instruction calls SLUICE_SHAPE; its last operands are SLUICE_LAST.
#define SLUICE_MULTIPLY(N, names, operands, a0, a1, a2, a3, b_operand, add_operand)                     \
  template <>                                                                                           \
  struct MultiplyRegisters<N, Operands::SLUICE_TYPES> {                                                 \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,   \
                                               int add) {                                               \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_operand                                \
                   ", 0;\n"                                                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N SLUICE_SHAPE " {" names "}, {%" #a0 ", %" #a1 \
                   ", %" #a2 ", %" #a3 "}, %" #b_operand ", add, " SLUICE_LAST ";\n}"                   \
                   : operands                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                     \
    }                                                                                                   \
  };
#define SLUICE_EIGHTS(...) __VA_ARGS__
#define SLUICE_TYPES kBF16
#define SLUICE_SHAPE "k16.f32.bf16.bf16"
#define SLUICE_LAST "1, 1, 0"
SLUICE_MULTIPLY(8, "%0, %1, %2, %3", SLUICE_EIGHTS(SLUICE_FOUR(0)), 4, 5, 6, 7, 8, 9)
SLUICE_MULTIPLY(16, SLUICE_LIST_1, SLUICE_EIGHTS(SLUICE_OPERANDS_1), 8, 9, 10, 11, 12, 13)
SLUICE_MULTIPLY(24, SLUICE_LIST_1 ", %8, %9, %10, %11", SLUICE_EIGHTS(SLUICE_OPERANDS_1, SLUICE_FOUR(8)), 12,
                13, 14, 15, 16, 17)
SLUICE_MULTIPLY(32, SLUICE_LIST_2, SLUICE_EIGHTS(SLUICE_OPERANDS_2), 16, 17, 18, 19, 20, 21)
SLUICE_MULTIPLY(40, SLUICE_LIST_2 ", %16, %17, %18, %19", SLUICE_EIGHTS(SLUICE_OPERANDS_2, SLUICE_FOUR(16)),
                20, 21, 22, 23, 24, 25)
SLUICE_MULTIPLY(48, SLUICE_LIST_3, SLUICE_EIGHTS(SLUICE_OPERANDS_3), 24, 25, 26, 27, 28, 29)
SLUICE_MULTIPLY(56, SLUICE_LIST_3 ", %24, %25, %26, %27", SLUICE_EIGHTS(SLUICE_OPERANDS_3, SLUICE_FOUR(24)),
                28, 29, 30, 31, 32, 33)
SLUICE_MULTIPLY(64, SLUICE_LIST_4, SLUICE_EIGHTS(SLUICE_OPERANDS_4), 32, 33, 34, 35, 36, 37)
SLUICE_MULTIPLY(80, SLUICE_LIST_5, SLUICE_EIGHTS(SLUICE_OPERANDS_5), 40, 41, 42, 43, 44, 45)
SLUICE_MULTIPLY(96, SLUICE_LIST_6, SLUICE_EIGHTS(SLUICE_OPERANDS_6), 48, 49, 50, 51, 52, 53)
SLUICE_MULTIPLY(112, SLUICE_LIST_7, SLUICE_EIGHTS(SLUICE_OPERANDS_7), 56, 57, 58, 59, 60, 61)
SLUICE_MULTIPLY(128, SLUICE_LIST_8, SLUICE_EIGHTS(SLUICE_OPERANDS_8), 64, 65, 66, 67, 68, 69)
SLUICE_MULTIPLY(144, SLUICE_LIST_9, SLUICE_EIGHTS(SLUICE_OPERANDS_9), 72, 73, 74, 75, 76, 77)
SLUICE_MULTIPLY(160, SLUICE_LIST_10, SLUICE_EIGHTS(SLUICE_OPERANDS_10), 80, 81, 82, 83, 84, 85)
SLUICE_MULTIPLY(176, SLUICE_LIST_11, SLUICE_EIGHTS(SLUICE_OPERANDS_11), 88, 89, 90, 91, 92, 93)
SLUICE_MULTIPLY(192, SLUICE_LIST_12, SLUICE_EIGHTS(SLUICE_OPERANDS_12), 96, 97, 98, 99, 100, 101)
#undef SLUICE_TYPES
#undef SLUICE_SHAPE
#undef SLUICE_LAST

#define SLUICE_FP8                                                                                      \
  SLUICE_MULTIPLY(64, SLUICE_LIST_4, SLUICE_EIGHTS(SLUICE_OPERANDS_4), 32, 33, 34, 35, 36, 37)          \
  SLUICE_MULTIPLY(80, SLUICE_LIST_5, SLUICE_EIGHTS(SLUICE_OPERANDS_5), 40, 41, 42, 43, 44, 45)          \
  SLUICE_MULTIPLY(96, SLUICE_LIST_6, SLUICE_EIGHTS(SLUICE_OPERANDS_6), 48, 49, 50, 51, 52, 53)          \
  SLUICE_MULTIPLY(112, SLUICE_LIST_7, SLUICE_EIGHTS(SLUICE_OPERANDS_7), 56, 57, 58, 59, 60, 61)         \
  SLUICE_MULTIPLY(128, SLUICE_LIST_8, SLUICE_EIGHTS(SLUICE_OPERANDS_8), 64, 65, 66, 67, 68, 69)         \
  SLUICE_MULTIPLY(144, SLUICE_LIST_9, SLUICE_EIGHTS(SLUICE_OPERANDS_9), 72, 73, 74, 75, 76, 77)         \
  SLUICE_MULTIPLY(160, SLUICE_LIST_10, SLUICE_EIGHTS(SLUICE_OPERANDS_10), 80, 81, 82, 83, 84, 85)       \
  SLUICE_MULTIPLY(176, SLUICE_LIST_11, SLUICE_EIGHTS(SLUICE_OPERANDS_11), 88, 89, 90, 91, 92, 93)       \
  SLUICE_MULTIPLY(192, SLUICE_LIST_12, SLUICE_EIGHTS(SLUICE_OPERANDS_12), 96, 97, 98, 99, 100, 101)     \
  SLUICE_MULTIPLY(224, SLUICE_LIST_14, SLUICE_EIGHTS(SLUICE_OPERANDS_14), 112, 113, 114, 115, 116, 117) \
  SLUICE_MULTIPLY(256, SLUICE_LIST_16, SLUICE_EIGHTS(SLUICE_OPERANDS_16), 128, 129, 130, 131, 132, 133)
#define SLUICE_LAST "1, 1"
#define SLUICE_TYPES kE4M3
#define SLUICE_SHAPE "k32.f32.e4m3.e4m3"
SLUICE_FP8
#undef SLUICE_TYPES
#undef SLUICE_SHAPE
#define SLUICE_TYPES kE5M2AndE4M3
#define SLUICE_SHAPE "k32.f32.e5m2.e4m3"
SLUICE_FP8
#undef SLUICE_TYPES
#undef SLUICE_SHAPE
#undef SLUICE_LAST
#undef SLUICE_FP8
#undef SLUICE_MULTIPLY
#undef SLUICE_EIGHTS

template <int N, Operands kOperands = Operands::kBF16>
__device__ __forceinline__ void multiply_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,
                                                   int add) {
  MultiplyRegisters<N, kOperands>::run(d, a, b, add);
}

}  // namespace sluice::cuda::tile
