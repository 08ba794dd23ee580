// setmaxnreg: moves registers between the warpgroups of a CTA. Producer warps keep few registers, consumer warps take the rest.
// Called by all warps of a warpgroup. An increase waits until the CTA's pool has enough registers.
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
