// L2 eviction policies of copies.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// For weights that a launch reads once, or several times within a short span. The L2 evicts their lines
// first, so it keeps activations, lines that several CTAs read, and the code of the next kernels.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ uint64_t read_often() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

}  // namespace sluice::cuda::tile
