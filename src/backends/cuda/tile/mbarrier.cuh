// mbarriers: barriers in shared memory that count arrivals and bytes.
//
// A phase completes when the number of threads given to barrier_init() have arrived and all expected bytes
// have been written. A waiter may lag by at most one phase, so the parity of a phase identifies it.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

// One thread calls it, then barrier_visible(). A CTA or cluster barrier follows before any other thread uses the mbarrier.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  barrier_init(shared_address(barrier), arrivals);
}
// barrier_init by one lane of a converged warp. Called by all lanes.
__device__ __forceinline__ void barrier_init_by_warp(uint32_t barrier, uint32_t arrivals) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.init.shared::cta.b64 [%0], %1;\n"
      "}" ::"r"(barrier),
      "r"(arrivals)
      : "memory");
}
__device__ __forceinline__ void barrier_init_by_warp(uint64_t* barrier, uint32_t arrivals) {
  barrier_init_by_warp(shared_address(barrier), arrivals);
}
__device__ __forceinline__ void barrier_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival that also adds to the expected bytes of this phase.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  barrier_expect(shared_address(barrier), bytes);
}

// barrier_expect by one lane of a converged warp. Called by all lanes. Bytes may arrive before they are expected, but not before
// the previous phase has completed. Fewer than 2^20 bytes per phase.
__device__ __forceinline__ void barrier_expect_by_warp(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
      "}" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void barrier_expect_by_warp(uint64_t* barrier, uint32_t bytes) {
  barrier_expect_by_warp(shared_address(barrier), bytes);
}

// One arrival by the calling thread. It orders the thread's earlier accesses within the CTA. In cluster scope each arrival would
// fence all memory of the GPU, which takes most of a microsecond.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival at a barrier given by its address, here or in a peer CTA (tile/cluster.cuh: remote_address). An arrival at a peer
// releases what the thread has read (by wgmma that it has waited for); it never publishes writes. So it needs no fence of wider
// scope.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival by one lane of a converged warp, on behalf of all its lanes. Branch-free.
__device__ __forceinline__ void arrive_by_warp(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "bar.warp.sync 0xffffffff;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier)
      : "memory");
}

// One lane of a converged warp arrives at two barriers, here and in a peer CTA (barrier_arrive_remote), on behalf of all its
// lanes. It does not arrive if `predicate` is 0. Predicated instead of branched, because ptxas accepts no branches between a wgmma
// and its wait.
__device__ __forceinline__ void arrive_twice_by_warp(uint32_t here, uint32_t there, uint32_t predicate = 1) {
  asm volatile(
      "{\n"
      ".reg .pred one, predicate;\n"
      "setp.ne.u32 predicate, %2, 0;\n"
      "bar.warp.sync 0xffffffff;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "and.pred one, one, predicate;\n"
      "@one mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "@one mbarrier.arrive.shared::cluster.b64 _, [%1];\n"
      "}" ::"r"(here),
      "r"(there), "r"(predicate)
      : "memory");
}

// arrive_twice_by_warp at the peer CTA alone.
__device__ __forceinline__ void arrive_at_peer_by_warp(uint32_t there, uint32_t predicate = 1) {
  asm volatile(
      "{\n"
      ".reg .pred one, predicate;\n"
      "setp.ne.u32 predicate, %1, 0;\n"
      "bar.warp.sync 0xffffffff;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "and.pred one, one, predicate;\n"
      "@one mbarrier.arrive.shared::cluster.b64 _, [%0];\n"
      "}" ::"r"(there),
      "r"(predicate)
      : "memory");
}

// One arrival by the calling thread, or none if `predicate` is 0. For rings that lanes read by loads: racecheck does not see that
// one lane's arrival for its warp orders the reads of the other lanes. 128 arrivals per stage are as fast as four
// (docs/lab/cuda-mxfp4.md, "Checked"). A load from shared memory may not have completed at the arrival if nothing before it needs
// the value (same note), so make `predicate` depend on a result of the loads.
__device__ __forceinline__ void arrive_by_lane(uint32_t barrier, uint32_t predicate = 1) {
  asm volatile(
      "{\n"
      ".reg .pred predicate;\n"
      "setp.ne.u32 predicate, %1, 0;\n"
      "@predicate mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(barrier),
      "r"(predicate)
      : "memory");
}

// One lane of a converged warp writes 16 bytes to shared memory and arrives. Branch-free.
__device__ __forceinline__ void store_and_arrive_by_warp(uint32_t to, uint4 value, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n"
      "@one mbarrier.arrive.shared::cta.b64 _, [%5];\n"
      "}" ::"r"(to),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

// Returns when the phase of this parity (0 first) is complete. The caller then sees the bytes that the phase counted.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  barrier_wait(shared_address(barrier), parity);
}

// True if the phase of this parity is complete; parity as in barrier_wait().
__device__ __forceinline__ int barrier_test(uint32_t barrier, uint32_t parity) {
  int done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}

// barrier_wait for a whole warp. The warp reconverges, so code after it may elect a lane without an active mask.
__device__ __forceinline__ void barrier_wait_by_warp(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  __syncwarp();
}
__device__ __forceinline__ void barrier_wait_by_warp(uint64_t* barrier, uint32_t parity) {
  barrier_wait_by_warp(shared_address(barrier), parity);
}

// Named barrier `number` (1 to 15; 0 is __syncthreads) over kThreads threads of the CTA, in whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_threads(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Proxy fence: orders this thread's writes to shared memory before bulk copies and wgmma that read them after its arrival.
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace sluice::cuda::tile
