// mbarriers: barriers in shared memory that count arrivals and bytes.
//
// A phase completes when the number of arrivals given to barrier_init() have happened and all expected bytes have
// been written. A waiting thread is at most one phase behind, so the parity of a phase is enough to identify it.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

// Called by one thread, followed by barrier_visible() and a CTA or cluster barrier, before any other thread uses the mbarrier.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  barrier_init(shared_address(barrier), arrivals);
}
// barrier_init() by one lane of a converged warp. Called by all lanes.
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

// barrier_expect() by one lane of a converged warp. Called by all lanes. Bytes may arrive before
// they are expected, but not before the previous phase is complete. Fewer than 2^20 bytes per phase.
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

// One arrival by the calling thread. It orders the thread's earlier accesses within the CTA. An
// arrival with cluster scope would fence all memory of the GPU, which takes most of a microsecond.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// One arrival at the barrier with this address, in this CTA or in a peer CTA (remote_address() in
// tile/cluster.cuh). An arrival at a peer only says that this thread has finished reading (by a
// wgmma that it has waited for), never that it has written, so it needs no fence of wider scope.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, by one lane of a converged warp on behalf of all its lanes. Branch-free.
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

// One lane of a converged warp arrives, on behalf of all its lanes, at a barrier
// here and at a barrier in a peer CTA, unless `predicate` is 0. Predicated instead
// of branched, because ptxas accepts no branches between a wgmma and its wait.
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

// The same at the peer CTA's barrier alone.
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

// One arrival by the calling thread, unless `predicate` is 0. For rings that lanes read by ordinary loads:
// compute-sanitizer's racecheck does not see that one lane's arrival for its warp orders the reads of the other lanes. 128
// arrivals per stage are as fast as four (docs/lab/cuda-mxfp4.md, "Checked"). At the arrival, a load from shared memory
// may still be in flight if no earlier instruction needs its value (same note), so make `predicate` depend on the loads.
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

// One lane of a converged warp writes 16 bytes to shared memory, then arrives. Branch-free.
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

// Waits until the phase with this parity (the first phase has 0) is complete. The caller then sees the bytes that the phase counted.
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

// True if the phase with this parity is complete.
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

// barrier_wait() for a whole warp. The warp reconverges, so that code after it may elect a lane without asking for the active mask.
__device__ __forceinline__ void barrier_wait_by_warp(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  __syncwarp();
}
__device__ __forceinline__ void barrier_wait_by_warp(uint64_t* barrier, uint32_t parity) {
  barrier_wait_by_warp(shared_address(barrier), parity);
}

// A barrier over kThreads threads of the CTA, in whole warps: named barrier `number` (1 to 15; 0 is __syncthreads).
template <int kThreads>
__device__ __forceinline__ void sync_threads(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Arrives at a named barrier at which other threads of the kThreads wait.
template <int kThreads>
__device__ __forceinline__ void arrive_threads(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// Proxy fence: this thread's earlier writes to shared memory come before bulk copies and wgmma that are issued after this thread arrives at a barrier.
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace sluice::cuda::tile
