// cp.async: copies of 16 or 4 bytes from global to shared memory that bypass registers. Each thread issues its own copies, in groups.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// Copies 16 bytes. If `there` is false, writes 16 zeros and does not read `from`. Both addresses are 16-byte aligned.
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// Copies the first `bytes` bytes of a 4-byte word and fills the rest with zeros. Both addresses are 4-byte aligned.
__device__ __forceinline__ void copy_4(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to_shared), "l"(from), "r"(bytes)
               : "memory");
}
// Commits a group: this thread's copies since its last commit. A group may be empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when at most kGroups of this thread's latest groups are still in flight.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Arrives once at an mbarrier (mbarrier.cuh) when all copies that this thread has issued are complete. The thread does not
// wait. A waiter that reads the data by wgmma calls fence_for_async() first.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace sluice::cuda::tile
