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

// Barrier over all threads of the cluster, in two halves. Every thread calls both, whole warps at a time. A CTA must not store
// into a peer CTA before the peer is known to run, so one round of this barrier comes before the first remote store. The arrival
// is relaxed: data for peers needs its own fence before it (barrier_visible()). A releasing arrival would wait for all memory
// operations of the thread, about half a microsecond if loads or stores are in flight.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address of the same shared memory offset in the CTA of the given rank.
__device__ __forceinline__ uint32_t remote_address(uint32_t shared, uint32_t rank) {
  uint32_t out;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(shared), "r"(rank));
  return out;
}

// A releasing arrival: all threads of the cluster see this thread's earlier writes after their wait. It also tells the peers that
// this thread has finished its reads from them.
__device__ __forceinline__ void cluster_publish() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Reads a float from a peer CTA's shared memory, between two rounds of the cluster barrier.
__device__ __forceinline__ float load_remote(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// load_remote of four floats, 16-byte aligned.
__device__ __forceinline__ float4 load_remote_four(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Stores 8 bytes into a peer CTA and counts them at an mbarrier there (tile/mbarrier.cuh). The store is asynchronous; waiters of
// that mbarrier see the data. The receiver must not exit before all expected bytes have arrived; the sender may exit.
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
// Stores a word into a peer CTA, between two rounds of the cluster barrier.
__device__ __forceinline__ void store_remote(uint32_t address, uint32_t value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Copies `bytes`, a multiple of 16, from this CTA into a peer CTA and counts them at an mbarrier there. Addresses are 16-byte
// aligned. Called by all lanes of a converged warp; one lane issues the copy. Threads that wrote the source have called
// fence_for_async(). The copy reads its source until it completes, so the sender must not exit before the receiver has all bytes.
// Long copies move at least 16 bytes per clock; 16-byte stores (above) are issued at less than one per clock.
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
