// Programmatic dependent launch, from the kernel's side.
//
// The rules, for every kernel here:
//   1. Before wait_for_previous(), read nothing but weights and what a problem calls settled. Weights are what no previous
//      launch may have written, except one that loads or replaces weights and never releases early. Write nothing to global
//      memory: the previous launch may still read it.
//   2. Every thread that reads or writes such memory calls wait_for_previous(), and every CTA does so at least once. A
//      grid that ends without the wait gives no guarantee about the launch before the previous one.
//   3. release_next() may stand anywhere, also at the start: the next launch's own wait covers the end of this grid and
//      its writes. It has its effect only once all CTAs have called it. Kernels that a settled problem may follow (the expert
//      GEMMs) release after their wait: what was written before them is then complete when the next launch starts.
//   4. A kernel may omit its own wait, for reads and writes alike, after a kernel of its own kind that released after its
//      wait, writes other rows and reads the same inputs: all that was written before the first is complete once the
//      second starts. One CTA of the second waits before it ends, so that the grid does not end before the first: a launch
//      that waits for the second has then waited for both. The second may release at its start.
//
// CTAs of a dependent grid are placed where the previous launch leaves room, not in order. That costs twice (measured:
// docs/lab/cuda-routing.md), and only the dependent kernel knows enough to avoid both:
//   - Small CTAs crowd the SMs that become free first. A grid of no more CTAs than SMs requests enough shared memory to
//     keep a second CTA off its SM.
//   - CTAs with adjacent indices that read the same lines at the same time start far apart. A cluster keeps them together;
//     without a cluster, set Launch::dependent = false.
#pragma once

namespace sluice::cuda::tile {

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;"); }

}  // namespace sluice::cuda::tile
