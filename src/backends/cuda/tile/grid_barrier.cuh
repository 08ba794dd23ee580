// Grid barrier on a counter in global memory that is 0 before and after the launch. All CTAs must be
// co-resident (Launch::cooperative), otherwise they deadlock. Called by one thread of each CTA, between CTA
// barriers. After the wait, a CTA sees what any CTA wrote before its arrival if it reads past the L1 (__ldcg).
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

__device__ __forceinline__ void arrive_at_grid_barrier(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void wait_at_grid_barrier(uint32_t* counter, uint32_t blocks) {
  uint32_t arrived;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
  } while ((arrived & 0xffff) != blocks);
}
// Called after the wait, by `blocks` threads of the grid. The last call clears the counter.
__device__ __forceinline__ void leave_grid_barrier(uint32_t* counter, uint32_t blocks) {
  if (atomicAdd(counter, 1u << 16) >> 16 == blocks - 1) *counter = 0;
}

// Counters of data that has been written to global memory. A thread that reads a count sees everything that was written before
// that count was added. If TMA writes or reads the data, call fence_global_for_async() before the addition and after the read.
__device__ __forceinline__ void add_written(uint32_t* counter, uint32_t n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
__device__ __forceinline__ uint32_t read_written(const uint32_t* counter) {
  uint32_t n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}
__device__ __forceinline__ void fence_global_for_async() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Adds 1 with acquire and release semantics, and returns the old value.
__device__ __forceinline__ uint32_t take_turn(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

}  // namespace sluice::cuda::tile
