// Registers that move between the warpgroups of a block: a block is launched with the same number for every thread.
#pragma once

namespace sluice::cuda::tile {

// By all 128 threads of a warpgroup. A multiple of 8 from 24 to 240, below and above what the kernel was launched with;
// take waits until enough were given. The threads of a block divide into whole warpgroups.
template <int kEach>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kEach));
}
template <int kEach>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kEach));
}

}  // namespace sluice::cuda::tile
