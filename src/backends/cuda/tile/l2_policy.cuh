// What the L2 does with the lines that a copy brings.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// For weights that one launch reads once, or for several rows at about the same time: their lines go first, so that the code of the next
// kernels, activations and what several CTAs read stay.
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
