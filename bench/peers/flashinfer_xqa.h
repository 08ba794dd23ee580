// XQA as bench/peers/build compiles it: once for each type of cache, with and without a window.
#pragma once
#include <cuda_runtime.h>

#include "peer.h"

// What a problem needs besides its arguments; sub-sequences that were split meet in scratch.
struct XqaProblem {
  uint32_t multiprocessors = 0;
  float* sinks = nullptr;  // [heads], or null: none
  uint32_t* semaphores = nullptr;
  void* scratch = nullptr;
};

using XqaRun = void(const sluice_peer_attention*, const XqaProblem&, cudaStream_t);
XqaRun xqa_bf16, xqa_bf16_window, xqa_e4m3, xqa_e4m3_window;
