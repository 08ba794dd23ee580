// cp.async: each thread copies 16 or 4 bytes from global to shared memory without registers. Copies are waited for in groups.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// Copies 16 bytes, or writes 16 zeros and does not read `from` if `there` is false. Both addresses are aligned to 16 bytes.
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// Copies the first `bytes` bytes of a 4-byte word and zeros the rest. Both addresses are aligned to 4 bytes.
__device__ __forceinline__ void copy_4(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to_shared), "l"(from), "r"(bytes)
               : "memory");
}
// Commits this thread's copies since its last commit as a group, which may be empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the kGroups latest groups of this thread are in flight.
template <int kGroups>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// The mbarrier (mbarrier.cuh) gets one arrival once all copies that this thread has issued are complete. The thread
// does not wait. A thread that waits for the mbarrier and reads the data by wgmma calls fence_for_async() in between.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace sluice::cuda::tile
