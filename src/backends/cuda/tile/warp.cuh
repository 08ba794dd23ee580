// Operations of the lanes of a warp.
#pragma once

namespace sluice::cuda::tile {

// Returns v, which is equal in all lanes, in a form that the compiler knows to be uniform. Otherwise arguments of TMA, bulk copies and
// wgmma would cost a loop over lanes, or a register in each lane.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

// Adds to each value the values of the lanes before it; `lane` is this lane's index among kWidth adjacent lanes. Sums are
// complete in the first kReach lanes.
template <int kReach = 32, int kWidth = 32, class... T>
__device__ __forceinline__ void add_lanes_before(int lane, T&... values) {
  const auto add = [lane](auto& value, int far) {
    const auto other = __shfl_up_sync(0xffffffffu, value, far, kWidth);
    value += lane >= far ? other : 0;
  };
#pragma unroll
  for (int far = 1; far < kReach; far *= 2) (add(values, far), ...);
}

}  // namespace sluice::cuda::tile
