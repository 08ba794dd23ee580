// Where all blocks of a grid meet, on a counter in global memory that is 0 before and after. All blocks run at once
// (Launch::cooperative), or they wait for each other without end. By one thread of each block, between barriers of the
// block: what the block wrote before its arrival is visible to every block after the wait, past the L1 (__ldcg).
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

__device__ __forceinline__ void arrive_at_grid_barrier(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void wait_at_grid_barrier(uint32_t* counter, uint32_t blocks) {
  uint32_t met;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(met) : "l"(counter) : "memory");
  } while ((met & 0xffff) != blocks);
}
// After the wait: the last block to leave clears the counter.
__device__ __forceinline__ void leave_grid_barrier(uint32_t* counter, uint32_t blocks) {
  if (atomicAdd(counter, 1u << 16) >> 16 == blocks - 1) *counter = 0;
}

// Counters of things that are written, in global memory: whoever has read such a number sees what was written before it was
// added. Where the copy engine writes or reads it, fence_global_for_async() stands in front of the addition, behind the read.
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
// Adds 1; what it was before. Orders what the thread did before and does after.
__device__ __forceinline__ uint32_t take_turn(uint32_t* counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

}  // namespace sluice::cuda::tile
