// Copies of contiguous bytes between global and shared memory by the copy engine.
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

// Those below are for any lanes, each with arguments of its own: the compiler makes a loop over lanes.

// copy_bulk of this lane.
__device__ __forceinline__ void copy_bulk_of_lane(uint32_t to_shared, const void* from, uint32_t bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// From shared memory, of what copies have brought or the lane has fenced (fence_for_async); sizes and addresses as above. The
// lane has shared memory back after stores_have_read(), and what it stored has come to memory after stores_are_done().
__device__ __forceinline__ void store_bulk_of_lane(void* to, uint32_t from_shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from_shared),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void stores_have_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void stores_are_done() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace sluice::cuda::tile
