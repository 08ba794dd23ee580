// wgmma: a warpgroup multiplies a tile of 64 rows by a tile of N rows, both bf16 in shared memory; sums are f32 in registers.
//
//   d[64, N] (+)= a[64, 16] * b[N, 16]^T
//
// Thread t of the warpgroup has, for each group j of 8 columns, in d[4 * j] to d[4 * j + 3]
//   (row, column), (row, column + 1), (row + 8, column), (row + 8, column + 1)
//   where row = 16 * (t / 32) + t % 32 / 4 and column = 8 * j + 2 * (t % 4).
//
// Order of calls: fence_operands() before the first multiply() after any other access to the
// registers of d; any number of multiply(); commit_group(); wait_groups<n>(), which waits
// until at most n groups are in flight. Code must not access d or overwrite a and b until it
// has waited for their group. hold() keeps the compiler from moving reads of d above the wait.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/cluster.cuh"

namespace sluice::cuda::tile {

__device__ __forceinline__ void fence_operands() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kUnderWay>
__device__ __forceinline__ void wait_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnderWay) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void hold(float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The descriptor of a tile of 128-byte rows (64 values of k), swizzled as in swizzle.cuh.
// Add kNext16 to advance by 16 values of k; add bytes / kDescribed to advance by `bytes`.
__device__ __forceinline__ uint64_t describe_tile(uint32_t shared) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupsOf8Rows = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupsOf8Rows | uint64_t{1} << 16 | (shared & 0x3ffff) >> 4;
}
__device__ __forceinline__ uint64_t describe_tile(const void* shared) {
  return describe_tile(shared_address(shared));
}
constexpr uint32_t kDescribed = 16;
constexpr uint64_t kNext16 = 32 / kDescribed;

// multiply<N>(d, a, b, add): add == 0 overwrites d. N is a multiple of 8, but not 72.
template <int N>
struct Multiply;

// Names of registers, and operands, in groups of 8.
#define SLUICE_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SLUICE_NAMES_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_NAMES_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define SLUICE_NAMES_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define SLUICE_NAMES_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define SLUICE_NAMES_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define SLUICE_NAMES_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_NAMES_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define SLUICE_NAMES_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define SLUICE_NAMES_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define SLUICE_NAMES_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define SLUICE_NAMES_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define SLUICE_NAMES_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define SLUICE_NAMES_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define SLUICE_NAMES_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define SLUICE_LIST_1 SLUICE_NAMES_0
#define SLUICE_LIST_2 SLUICE_LIST_1 ", " SLUICE_NAMES_1
#define SLUICE_LIST_3 SLUICE_LIST_2 ", " SLUICE_NAMES_2
#define SLUICE_LIST_4 SLUICE_LIST_3 ", " SLUICE_NAMES_3
#define SLUICE_LIST_5 SLUICE_LIST_4 ", " SLUICE_NAMES_4
#define SLUICE_LIST_6 SLUICE_LIST_5 ", " SLUICE_NAMES_5
#define SLUICE_LIST_7 SLUICE_LIST_6 ", " SLUICE_NAMES_6
#define SLUICE_LIST_8 SLUICE_LIST_7 ", " SLUICE_NAMES_7
#define SLUICE_LIST_9 SLUICE_LIST_8 ", " SLUICE_NAMES_8
#define SLUICE_LIST_10 SLUICE_LIST_9 ", " SLUICE_NAMES_9
#define SLUICE_LIST_11 SLUICE_LIST_10 ", " SLUICE_NAMES_10
#define SLUICE_LIST_12 SLUICE_LIST_11 ", " SLUICE_NAMES_11
#define SLUICE_LIST_13 SLUICE_LIST_12 ", " SLUICE_NAMES_12
#define SLUICE_LIST_14 SLUICE_LIST_13 ", " SLUICE_NAMES_13
#define SLUICE_LIST_15 SLUICE_LIST_14 ", " SLUICE_NAMES_14
#define SLUICE_LIST_16 SLUICE_LIST_15 ", " SLUICE_NAMES_15
#define SLUICE_EIGHT(i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SLUICE_OPERANDS_1 SLUICE_EIGHT(0)
#define SLUICE_OPERANDS_2 SLUICE_OPERANDS_1, SLUICE_EIGHT(8)
#define SLUICE_OPERANDS_3 SLUICE_OPERANDS_2, SLUICE_EIGHT(16)
#define SLUICE_OPERANDS_4 SLUICE_OPERANDS_3, SLUICE_EIGHT(24)
#define SLUICE_OPERANDS_5 SLUICE_OPERANDS_4, SLUICE_EIGHT(32)
#define SLUICE_OPERANDS_6 SLUICE_OPERANDS_5, SLUICE_EIGHT(40)
#define SLUICE_OPERANDS_7 SLUICE_OPERANDS_6, SLUICE_EIGHT(48)
#define SLUICE_OPERANDS_8 SLUICE_OPERANDS_7, SLUICE_EIGHT(56)
#define SLUICE_OPERANDS_9 SLUICE_OPERANDS_8, SLUICE_EIGHT(64)
#define SLUICE_OPERANDS_10 SLUICE_OPERANDS_9, SLUICE_EIGHT(72)
#define SLUICE_OPERANDS_11 SLUICE_OPERANDS_10, SLUICE_EIGHT(80)
#define SLUICE_OPERANDS_12 SLUICE_OPERANDS_11, SLUICE_EIGHT(88)
#define SLUICE_OPERANDS_13 SLUICE_OPERANDS_12, SLUICE_EIGHT(96)
#define SLUICE_OPERANDS_14 SLUICE_OPERANDS_13, SLUICE_EIGHT(104)
#define SLUICE_OPERANDS_15 SLUICE_OPERANDS_14, SLUICE_EIGHT(112)
#define SLUICE_OPERANDS_16 SLUICE_OPERANDS_15, SLUICE_EIGHT(120)

// N = 8: half a group of registers.
template <>
struct Multiply<8> {
  static __device__ __forceinline__ void run(float (&d)[4], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 0, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b), "r"(add));
  }
};
// N = 16 * groups. a, b and add are the numbers of the operands after the N / 2 registers of d.
#define SLUICE_MULTIPLY(N, groups, a_operand, b_operand, add_operand)                                \
  template <>                                                                                        \
  struct Multiply<N> {                                                                               \
    static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b, int add) { \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_operand                             \
                   ", 0;\n"                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SLUICE_LIST_##groups \
                   "}, %" #a_operand ", %" #b_operand ", add, 1, 1, 0, 0;\n}"                        \
                   : SLUICE_OPERANDS_##groups                                                        \
                   : "l"(a), "l"(b), "r"(add));                                                      \
    }                                                                                                \
  };
SLUICE_MULTIPLY(16, 1, 8, 9, 10)
SLUICE_MULTIPLY(32, 2, 16, 17, 18)
SLUICE_MULTIPLY(48, 3, 24, 25, 26)
SLUICE_MULTIPLY(64, 4, 32, 33, 34)
SLUICE_MULTIPLY(80, 5, 40, 41, 42)
SLUICE_MULTIPLY(96, 6, 48, 49, 50)
SLUICE_MULTIPLY(112, 7, 56, 57, 58)
SLUICE_MULTIPLY(128, 8, 64, 65, 66)
SLUICE_MULTIPLY(144, 9, 72, 73, 74)
SLUICE_MULTIPLY(160, 10, 80, 81, 82)
SLUICE_MULTIPLY(176, 11, 88, 89, 90)
SLUICE_MULTIPLY(192, 12, 96, 97, 98)
SLUICE_MULTIPLY(208, 13, 104, 105, 106)
SLUICE_MULTIPLY(224, 14, 112, 113, 114)
SLUICE_MULTIPLY(240, 15, 120, 121, 122)
SLUICE_MULTIPLY(256, 16, 128, 129, 130)

#undef SLUICE_MULTIPLY

// The same for N = 16 * groups + 8; the last 8 columns have the four registers d0 to d3.
#define SLUICE_MULTIPLY(N, groups, d0, d1, d2, d3, a_operand, b_operand, add_operand)                \
  template <>                                                                                        \
  struct Multiply<N> {                                                                               \
    static __device__ __forceinline__ void run(float (&d)[N / 2], uint64_t a, uint64_t b, int add) { \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_operand                             \
                   ", 0;\n"                                                                          \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SLUICE_LIST_##groups \
                   ", %" #d0 ", %" #d1 ", %" #d2 ", %" #d3 "}, %" #a_operand ", %" #b_operand        \
                   ", add, 1, 1, 0, 0;\n}"                                                           \
                   : SLUICE_OPERANDS_##groups, "+f"(d[d0]), "+f"(d[d1]), "+f"(d[d2]), "+f"(d[d3])    \
                   : "l"(a), "l"(b), "r"(add));                                                      \
    }                                                                                                \
  };
SLUICE_MULTIPLY(24, 1, 8, 9, 10, 11, 12, 13, 14)
SLUICE_MULTIPLY(40, 2, 16, 17, 18, 19, 20, 21, 22)
SLUICE_MULTIPLY(56, 3, 24, 25, 26, 27, 28, 29, 30)
SLUICE_MULTIPLY(88, 5, 40, 41, 42, 43, 44, 45, 46)
SLUICE_MULTIPLY(104, 6, 48, 49, 50, 51, 52, 53, 54)
SLUICE_MULTIPLY(120, 7, 56, 57, 58, 59, 60, 61, 62)
SLUICE_MULTIPLY(136, 8, 64, 65, 66, 67, 68, 69, 70)
SLUICE_MULTIPLY(152, 9, 72, 73, 74, 75, 76, 77, 78)
SLUICE_MULTIPLY(168, 10, 80, 81, 82, 83, 84, 85, 86)
SLUICE_MULTIPLY(184, 11, 88, 89, 90, 91, 92, 93, 94)
SLUICE_MULTIPLY(200, 12, 96, 97, 98, 99, 100, 101, 102)
SLUICE_MULTIPLY(216, 13, 104, 105, 106, 107, 108, 109, 110)
SLUICE_MULTIPLY(232, 14, 112, 113, 114, 115, 116, 117, 118)
SLUICE_MULTIPLY(248, 15, 120, 121, 122, 123, 124, 125, 126)

#undef SLUICE_MULTIPLY

template <int N>
__device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  Multiply<N>::run(d, a, b, add);
}

}  // namespace sluice::cuda::tile
