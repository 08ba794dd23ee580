// CTAs of a cluster: ranks, the cluster barrier, and stores into a peer CTA's shared memory (DSMEM).
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Barrier over all threads of the cluster, in two halves, which every thread calls in whole warps. A CTA must not
// store to a peer CTA that has not started, so complete one round of this barrier before the first remote store.
// The arrival is relaxed: before it, writes for peers need a separate fence (barrier_visible()). A releasing
// arrival would wait for all memory operations of the thread, about half a microsecond if some are in flight.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same shared memory offset in the CTA with this rank.
__device__ __forceinline__ uint32_t remote_address(uint32_t shared, uint32_t rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(shared), "r"(rank));
  return out;
}

// An arrival with release semantics: after their wait, all threads of the cluster see this thread's earlier
// writes. It also tells the peers that this thread has read what it wanted from their shared memory.
__device__ __forceinline__ void cluster_publish() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Reads a float from a peer CTA's shared memory. Must be between two rounds of the cluster barrier.
__device__ __forceinline__ float load_remote(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// load_remote() of four floats; the address is aligned to 16 bytes.
__device__ __forceinline__ float4 load_remote_four(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Stores 8 bytes to a peer CTA asynchronously and counts them at an mbarrier there (tile/mbarrier.cuh); threads that wait
// for the mbarrier see the data. The receiver must not exit before all expected bytes have arrived; the sender may exit.
__device__ __forceinline__ void store_remote(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}

// As above, for 4 bytes.
__device__ __forceinline__ void store_remote(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address),
               "f"(value), "r"(barrier)
               : "memory");
}

// As above, for 16 bytes.
__device__ __forceinline__ void store_remote(uint32_t address, uint4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}
// Stores a word to a peer CTA. Must be between two rounds of the cluster barrier.
__device__ __forceinline__ void store_remote(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Copies `bytes`, a multiple of 16, from this CTA to a peer CTA and counts them at an mbarrier there. Addresses are aligned
// to 16 bytes. Called by all lanes of a converged warp; one lane issues the copy. Threads that wrote the source must have
// called fence_for_async(). The source is read until the copy completes, so the sender must not exit before the receiver has
// all bytes. Long copies move at least 16 bytes per clock; 16-byte stores (above) are issued at less than one per clock.
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
