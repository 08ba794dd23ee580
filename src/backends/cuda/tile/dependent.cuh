// Programmatic dependent launch, in the kernels.
//
// The rules, for every kernel here:
//   1. Before wait_for_previous(), read only weights and tensors that the problem calls settled. A weight is memory that no
//      previous launch may have written, except a launch that loads or replaces weights and never releases early. Write nothing
//      to global memory: the previous launch may still read it.
//   2. Every thread that reads or writes other global memory calls wait_for_previous() first, and every CTA calls it at least
//      once. A grid that ends without the wait gives no guarantee about the launch before the previous one.
//   3. A kernel may call release_next() anywhere, also at the start, because the next launch's own wait covers the end of this
//      grid and its writes. It takes effect only after all CTAs have called it. A kernel that may precede a problem with settled
//      inputs (as the expert GEMMs do) releases after its own wait: everything written before it is then complete when the next
//      launch starts.
//   4. A kernel may omit its wait, for reads and writes, after a kernel of the same kind that released after its own
//      wait, writes other rows and reads the same inputs. Everything written before the first kernel is then complete when the
//      second one starts. One CTA of the second kernel still waits before it ends, so that the second grid does not end before
//      the first: a launch that waits for the second has then waited for both. The second may release at its start.
//
// The hardware places the CTAs of a dependent grid where the previous launch leaves room, not in order. That has two costs
// (measured: docs/lab/cuda-routing.md), and only the dependent kernel can avoid them:
//   - Small CTAs crowd the SMs that become free first. A grid with no more CTAs than SMs requests enough shared memory to keep
//     a second CTA off its SM.
//   - CTAs with adjacent indices that read the same lines at the same time start far apart. A cluster keeps them together;
//     without a cluster, set Launch::dependent = false.
#pragma once

namespace sluice::cuda::tile {

__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void release_next() { asm volatile("griddepcontrol.launch_dependents;"); }

}  // namespace sluice::cuda::tile
