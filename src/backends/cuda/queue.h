// What Stream::native points to on CUDA.
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
  int sms = 0;  // multiprocessors of the device
  // Zeroed memory for grid barriers: counters, flags, and words that hold a value once they are not zero. A kernel that uses it
  // waits for the previous launch first (tile/dependent.cuh), and leaves it zero. A kernel without that wait (rule 4 there) uses
  // words of its own, disjoint from those of the previous launch. Work of a queue runs in order, so all its kernels share this
  // memory. A recording has its own, so that it may be replayed beside other work.
  uint32_t* grid_words = nullptr;
  // Programmatic dependent launch: a kernel may start before the previous launch has ended, and then waits for it before it
  // reads or writes what that launch may have written or read. false: plain launches.
  bool dependent = true;
  // Kernels enqueued since the last wait, oldest first: the last kNames of them. The message of a fault names them.
  static constexpr size_t kNames = 64;
  std::array<std::string_view, kNames> names{};
  uint64_t enqueued = 0, done = 0;  // in all, and before the last wait
  // Kernels of the current recording, or null.
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

// Ok, or an error with `doing`, CUDA's name of the error and its description.
Status check(cudaError_t error, std::string_view doing);

}  // namespace sluice::cuda
