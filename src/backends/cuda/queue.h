// The type that Stream::native points to on CUDA.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/grid_words.h"
#include "base/status.h"
#include "base/tensor.h"

namespace sluice::cuda {

struct Queue : DeviceQueue {
  cudaStream_t stream = nullptr;
  int sms = 0;
  // Zeroed memory for grid barriers: counters, flags, and words that are zero until a value is published. A kernel that uses
  // it waits for the previous launch first (tile/dependent.cuh), and the memory is zero again after the kernel. A kernel
  // that omits that wait (rule 4 there) uses words that the previous launch does not use. Work of a queue runs in order, so
  // all its kernels share this memory. A recording has a separate copy, so it can be replayed while other work runs.
  uint32_t* grid_words = nullptr;
  // Programmatic dependent launch: a kernel may start before the previous launch has ended. Before it
  // accesses memory that the previous launch accesses, it waits for that launch. false: plain launches.
  bool dependent = true;
  // The last kNames kernels enqueued since the last wait, oldest first. The error message of a fault names them.
  static constexpr size_t kNames = 64;
  std::array<std::string_view, kNames> names{};
  uint64_t enqueued = 0, done = 0;  // all kernels so far; those before the last wait
  // The kernels of the current recording, or null.
  std::vector<std::string_view>* recording = nullptr;

  void note(std::string_view name) {
    if (recording) {
      recording->push_back(name);
    } else {
      names[enqueued++ % kNames] = name;
    }
  }
};

inline Queue& queue_of(Stream stream) { return *static_cast<Queue*>(stream.native); }

// Returns Ok, or an error with `doing`, CUDA's name of the error and CUDA's description.
Status check(cudaError_t error, std::string_view doing);

}  // namespace sluice::cuda
