// TMA boxes into the L2 alone: hints, for which nothing waits.
#pragma once
#include <cuda.h>

namespace sluice::cuda::tile {

// The box of copy_box (tile/tensor_copy.cuh). Every lane of a converged warp calls it with the same arguments; one lane issues.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int column, int row) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];\n"
      "}" ::"l"(&map),
      "r"(column), "r"(row)
      : "memory");
}

}  // namespace sluice::cuda::tile
