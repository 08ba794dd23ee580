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

struct Queue {
  cudaStream_t stream = nullptr;
  int device = 0;
  int sms = 0;  // multiprocessors of the device
  // Zeros where the blocks of a grid meet each other: counters, flags, and words that have come once they are not zero. A
  // kernel that uses it waits for the kernel before it (tile/dependent.cuh) before it touches it, and leaves it zero; one
  // that does without that wait (rule 4 there) has words of its own, beside those of the kernel that it follows. Work
  // of one queue runs in order, so all its kernels share it; a recording brings its own, so that it may be replayed beside
  // other work.
  uint32_t* grid_words = nullptr;
  // Kernels may start before the kernel in front of them has ended, and then wait for it before they read or write
  // what it may have written or read (programmatic dependent launch). Off: plain launches.
  bool dependent = true;
  // Kernels enqueued since the last wait, oldest first, for the message of a fault: the last kNames of them.
  static constexpr size_t kNames = 64;
  std::array<std::string_view, kNames> names{};
  uint64_t enqueued = 0;
  // Kernels of the recording under way, or null.
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

// Empty if there was no error; otherwise `doing`, CUDA's name of it, and what it means.
Status check(cudaError_t error, std::string_view doing);

}  // namespace sluice::cuda
