// Converts sinks to f32, the type of FlashInfer's kernels.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <vector>

#include "peer.h"

// Converts sinks, [heads] in bf16, to f32 at `to`; both are device memory. Synchronizes.
inline bool copy_sinks(const sluice_peer_attention* p, void* to) {
  std::vector<__nv_bfloat16> given(p->heads);
  if (cudaMemcpy(given.data(), p->sinks, given.size() * sizeof given[0], cudaMemcpyDeviceToHost) !=
      cudaSuccess)
    return false;
  const std::vector<float> wanted(given.begin(), given.end());
  return cudaMemcpy(to, wanted.data(), wanted.size() * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess;
}
