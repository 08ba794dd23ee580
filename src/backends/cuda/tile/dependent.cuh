// Programmatic dependent launch, device side.
//
// The rules, for every kernel here:
//  1. Before wait_for_previous(), read only weights and tensors that the problem declares as settled. A weight is memory that no
//      previous launch may have written, except a launch that loads or replaces weights and never calls release_next(). Write nothing
//      to global memory: the previous launch may still read it.
//   2. Every thread that reads or writes other global memory calls wait_for_previous() first, and every CTA calls it at least
//      once. If a grid ends without the wait, the launch after it cannot rely on the completion of the launch before it.
//   3. A kernel may call release_next() anywhere, even at its start, because the next launch's own wait covers the end of this
//      grid and its writes. The next launch starts only after all CTAs have made this call. A kernel that may precede a problem with
//      settled inputs (as the expert GEMMs do) calls it after its own wait: everything written before this kernel is then complete
//      when the next launch starts.
//   4. A kernel may omit its wait after a kernel of the same kind that reads the same inputs, writes other rows, and called
//      release_next() after its own wait. Everything written before the first kernel is then complete when the second starts. One
//      CTA of the second kernel still waits before it exits, so that the second grid does not end before the first: a launch that
//      waits for the second has then waited for both. The second may call release_next() at its start.
//
// The hardware starts CTAs of a dependent grid wherever the previous launch leaves room, not in order.
// That has two costs (measured: docs/lab/cuda-routing.md), which only the dependent kernel can avoid:
//  - Small CTAs crowd onto the SMs that become free first. So a grid with no more CTAs than SMs requests enough shared memory that
//     no SM holds two of its CTAs.
//   - CTAs with adjacent indices, which read the same cache lines at the same time, start far apart. A cluster keeps them together;
//     without a cluster, set Launch::dependent = false.
#pragma once

namespace sluice::cuda::tile {

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;"); }

}  // namespace sluice::cuda::tile
