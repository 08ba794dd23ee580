// Blocks of one cluster: who they are, their barrier, and stores into each other's shared memory.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Barrier over all threads of the cluster, in two halves; every thread calls both, whole warps at a time. A block may
// be stored into once it is known to run, so one round of this comes before the first remote store. The arrival orders
// nothing: what others are to see by it needs its own fence before (barrier_visible()), because a releasing arrival
// waits for all memory of the thread, about half a microsecond where loads or stores are under way.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same place in the shared memory of the block `rank` of this cluster.
__device__ __forceinline__ uint32_t remote_address(uint32_t shared, uint32_t rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(shared), "r"(rank));
  return out;
}

// An arrival that makes what the thread did before visible to all after their wait; also says that it has read what it
// wanted of the others.
__device__ __forceinline__ void cluster_publish() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Reads a number from another block's shared memory, between two rounds of the barrier.
__device__ __forceinline__ float load_remote(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Stores 8 bytes into another block and counts them on a barrier there (tile/mbarrier.cuh): asynchronous, read by
// whoever waits for that barrier. The receiver stays until all that it expects has come; the sender may leave.
__device__ __forceinline__ void store_remote(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

// The same with 4 bytes.
__device__ __forceinline__ void store_remote(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
               "f"(value), "r"(barrier)
               : "memory");
}

// The same with 16 bytes.
__device__ __forceinline__ void store_remote(uint32_t address, uint4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}
// A word for another block, between two rounds of the barrier.
__device__ __forceinline__ void store_remote(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Copies `bytes`, a multiple of 16, from here into another block and counts them on a barrier there; addresses are aligned
// to 16. By a converged warp with all its lanes; one issues. What the threads wrote there before, they have fenced
// (fence_for_async). The copy reads until it has arrived, so the sender stays until the receiver has all. Long copies
// move 16 bytes a clock and more, stores of 16 bytes each (above) less than one.
__device__ __forceinline__ void send_by_warp(uint32_t address, const void* from, uint32_t bytes,
                                             uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
      "}" ::"r"(address),
      "r"(shared_address(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace sluice::cuda::tile
