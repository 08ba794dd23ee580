// XQA as bench/peers/build compiles it: once for each cache type, with and without a window.
#pragma once
#include <cuda_runtime.h>

#include "peer.h"

// Additional arguments of a run. Split sequences are combined in scratch.
struct XqaProblem {
  uint32_t multiprocessors = 0;
  float* sinks = nullptr;  // [heads], may be null
  uint32_t* semaphores = nullptr;
  void* scratch = nullptr;
};

using XqaRun = void(const sluice_peer_attention*, const XqaProblem&, cudaStream_t);
XqaRun xqa_bf16, xqa_bf16_window, xqa_e4m3, xqa_e4m3_window;
