// Registers move between the warpgroups of a block: those that fetch keep few, those that multiply take what is left. All of
// a warpgroup call it; a take waits until the pool that the block began with has enough.
#pragma once

namespace sluice::cuda::tile {

template <int kRegisters>
__device__ __forceinline__ void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace sluice::cuda::tile
