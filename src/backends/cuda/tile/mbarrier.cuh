// Barriers in shared memory that count arrivals and bytes.
//
// A barrier passes phase after phase: one ends when as many threads as it was made for have arrived and all bytes that
// they announced have come. A waiter may lag behind by one phase and no more, so a parity names the phase.
#pragma once
#include <cstdint>

#include "backends/cuda/tile/shared.cuh"

namespace sluice::cuda::tile {

// By one thread; then barrier_visible(), and a barrier of the block or cluster before anybody else uses it.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}
// barrier_init by one lane of a converged warp that calls it with all its lanes.
__device__ __forceinline__ void barrier_init_by_warp(uint64_t* barrier, uint32_t arrivals) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.init.shared::cta.b64 [%0], %1;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(arrivals)
      : "memory");
}
__device__ __forceinline__ void barrier_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival that also says how many bytes this phase is to receive.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// The same by one lane of a converged warp that calls it with all its lanes. Bytes may come before they are announced, not
// before the phase in front has ended; fewer than 2^20 a phase.
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

// One arrival by the calling thread. It orders what the thread did before within the block; in the scope of the cluster
// each arrival would fence all memory of the GPU, which takes most of a microsecond.
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same by the barrier's address, here or (tile/cluster.cuh: remote_address) in another block of the cluster. An arrival
// elsewhere says that the thread has done with what it read (wgmma that it has waited for), never that something was
// written: no fence of wider scope goes with it.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival at each of two barriers, here and in another block of the cluster (barrier_arrive_remote), by one lane of a
// converged warp, for what all its lanes have done before; none if `truly` is 0. Without a branch: ptxas takes no branches
// between a wgmma and its wait.
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

// The second of them alone.
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

// One arrival by the calling thread; none if `truly` is 0, without a branch. For rings that lanes read by loads: racecheck takes
// those of all lanes but one for unordered in front of an arrival by one for its warp. 128 arrivals a stage are as fast as four
// (docs/notes/cuda-mxfp4.md, "Checked"). Loads from shared memory whose answer nothing in front of it needs may not have read by
// then (same place): let `truly` depend on what was made of them.
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

// Writes 16 bytes of shared memory and arrives, by one lane of a converged warp, without a branch.
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

// Returns once the phase of this parity (0 first) is complete; the bytes that it counted are then visible.
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

// Whether the phase of this parity is complete, as barrier_wait() takes it.
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

// The same for a whole warp, which leaves together: what follows may elect a lane without asking who is there.
__device__ __forceinline__ void barrier_wait_by_warp(uint32_t barrier, uint32_t parity) {
  barrier_wait(barrier, parity);
  __syncwarp();
}
__device__ __forceinline__ void barrier_wait_by_warp(uint64_t* barrier, uint32_t parity) {
  barrier_wait_by_warp(shared_address(barrier), parity);
}

// A place in a ring of stages, and the parity of the phase that is under way there.
struct RingPlace {
  uint32_t stage = 0, parity = 0;
  __device__ __forceinline__ void step(uint32_t stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  // `steps` <= stages of them.
  __device__ __forceinline__ void step_by(uint32_t steps, uint32_t stages) {
    stage += steps;
    if (stage >= stages) stage -= stages, parity ^= 1;
  }
};

// Barrier `number` (1 to 15; 0 is __syncthreads) of kThreads threads of the block, whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_threads(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// What this thread wrote to shared memory, before it arrives: for copies and wgmma that read it after.
__device__ __forceinline__ void fence_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace sluice::cuda::tile
