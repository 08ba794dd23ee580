// A sum over the threads of a CTA.
#pragma once

namespace sluice::cuda::tile {

// The sum over all threads of the CTA, with the same bits in every thread. Call it once per launch, because it does not reset its shared memory.
__device__ __forceinline__ float block_sum(float value) {
  constexpr int kWarp = 32;
  __shared__ float of_warp[kWarp];
  const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (lane == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = lane < warps ? of_warp[lane] : 0.f;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

}  // namespace sluice::cuda::tile
