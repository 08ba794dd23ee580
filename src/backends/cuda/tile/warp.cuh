// Operations of the lanes of a warp.
#pragma once

namespace sluice::cuda::tile {

// Returns v, which must be equal in all lanes, as a value that the compiler knows to be uniform.
// For other values, TMA, bulk copies and wgmma cost a loop over lanes, or a register in every lane.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

// Adds to each value the values of all lower lanes; `lane` is the index among
// kWidth adjacent lanes. Only the first kReach lanes get complete sums.
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
