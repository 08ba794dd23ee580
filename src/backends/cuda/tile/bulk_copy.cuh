// Copies of contiguous bytes from global to shared memory by the copy engine.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

// Copies `bytes`, a multiple of 16, and counts them at a barrier of this block; addresses are aligned to 16. Called by all
// lanes of a converged warp with the same arguments; one issues (the election stands inside the assembly, see
// tensor_copy.cuh).
__device__ __forceinline__ void copy_bulk(uint32_t to_shared, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
      "}" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Two of these under one election, which costs more than a copy.
__device__ __forceinline__ void copy_bulk_two(uint32_t to, const void* from, uint32_t bytes, uint32_t to_too,
                                              const void* from_too, uint32_t bytes_too, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%6];\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%3], [%4], %5, [%6];\n"
      "}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(to_too), "l"(from_too), "r"(bytes_too), "r"(barrier)
      : "memory");
}

// copy_bulk into every block of the cluster whose rank has a bit in `blocks`: to the same place in each, counted at the same
// place in each (tensor_copy.cuh: copy_box_to).
__device__ __forceinline__ void copy_bulk_to(uint32_t blocks, uint32_t to_shared, const void* from,
                                             uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
      "%2, [%3], %4;\n"
      "}" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

}  // namespace sluice::cuda::tile
