// Bulk copies of contiguous bytes between global and shared memory, by the TMA unit.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

// Copies `bytes`, a multiple of 16, and counts them at an mbarrier of this CTA. Addresses
// are aligned to 16 bytes. All lanes of a converged warp call it with the same arguments,
// and one lane issues the copy. tensor_copy.cuh says why the election is in the assembly.
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

// copy_bulk() with an L2 policy (l2_policy.cuh).
__device__ __forceinline__ void copy_bulk_by(uint64_t policy, uint32_t to_shared, const void* from,
                                             uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;\n"
      "}" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Two bulk copies with one election, because electing a lane costs more than a copy.
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

// copy_bulk() to every CTA of the cluster whose rank has a bit in `blocks`: to the same shared
// memory offset, counted at the mbarrier at the same offset (as copy_box_to in tensor_copy.cuh).
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

// The functions below may be called by any lanes, each with its own arguments. The compiler emits a loop over the lanes.

// copy_bulk() issued by the calling lane.
__device__ __forceinline__ void copy_bulk_of_lane(uint32_t to_shared, const void* from, uint32_t bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies from shared to global memory; sizes and addresses as above. The source must have been written by bulk copies, or by this lane before
// a fence_for_async(). After stores_have_read() the lane may overwrite the source; after stores_are_done() the data is in global memory.
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
