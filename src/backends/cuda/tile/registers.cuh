// setmaxnreg: moves registers between the warpgroups of a CTA. Producer warps give up most of their registers, and consumer
// warps get them. Called by all warps of a warpgroup. An increase waits until enough registers of the CTA are free.
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
