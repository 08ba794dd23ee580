// Copies of 16 bytes, or of 4, from global to shared memory that pass no register: each thread issues its own, in groups.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// Copies 16 bytes, or writes 16 zeros where `there` is false; both addresses are aligned to 16. `from` is not read then.
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// Copies 4 bytes, or the first `bytes` of them and zeros; both addresses are aligned to 4.
__device__ __forceinline__ void copy_4(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to_shared), "l"(from), "r"(bytes)
               : "memory");
}
// Ends a group: the copies of this thread since the last one. A group may be empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when at most kGroups of this thread's groups, the latest, are still under way.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// One arrival at a barrier of shared memory (mbarrier.cuh) as soon as all copies that this thread has begun are there; the
// thread goes on at once. Whoever waits for it and reads by wgmma fences first (fence_for_async).
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace sluice::cuda::tile
