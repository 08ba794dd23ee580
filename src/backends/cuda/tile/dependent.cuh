// Programmatic dependent launch, from the kernel's side.
//
// The rules, for every kernel here:
//   1. Before wait_for_previous() read nothing but weights: what no kernel in front, except one that loads or replaces
//      weights and never releases early, may have written, and what a problem calls settled. Write nothing global:
//      the kernel in front may still read it.
//   2. Every thread that reads or writes such memory calls wait_for_previous(), and every block does so at least once:
//      a grid that ends without it says nothing about the grid before its predecessor.
//   3. release_next() may stand anywhere, also at the start: the next kernel's own wait covers the end of this grid and
//      its writes. It is only early enough if all blocks get there. Kernels that a settled problem may follow (the expert
//      GEMMs) release behind their wait: what was written before them is then there when the next kernel starts.
//   4. A kernel may do without its own wait, for reads and writes alike, behind one of its own kind that released behind its
//      wait, writes other rows and reads the same inputs: all that was written in front of the first is there once the
//      second starts. One block of the second waits before it ends, so that the grid does not end before the first: who
//      waits for the second has then waited for both. It may release at its start.
//
// Blocks of a dependent grid are placed as the grid in front leaves room, not in order. That costs twice (measured:
// docs/notes/cuda-routing.md), and both are the dependent kernel's to mend, since only it knows:
//   - Small blocks crowd the SMs that are free first. A grid of no more blocks than SMs asks for enough shared memory to
//     keep a second one out.
//   - Neighbours that read the same lines at the same time begin far from each other. A cluster keeps them together;
//     without one, Launch::dependent = false.
#pragma once

namespace sluice::cuda::tile {

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;"); }

}  // namespace sluice::cuda::tile
