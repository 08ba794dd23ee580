// The type that Stream::native points to on the CPU, and how kernels enqueue work.
#pragma once
#include <functional>
#include <vector>

#include "backends/cpu/pool.h"
#include "base/status.h"
#include "base/tensor.h"

namespace sluice::cpu {

// Work runs during the enqueue, on the caller and the pool. If the queue is recording, it runs when the recording is replayed.
struct Queue : DeviceQueue {
  ThreadPool* pool = nullptr;
  int simd_index = 0;  // index into Highway's tables: see simd/dispatch.h
  std::vector<std::function<void(Queue&)>>* recording = nullptr;
};

inline Queue& queue_of(Stream stream) { return *static_cast<Queue*>(stream.native); }

// Every enqueue function ends with this call. work(Queue&) captures its Problem and Args by value.
template <class Work>
Status submit(Stream stream, Work work) {
  Queue& queue = queue_of(stream);
  if (queue.recording) {
    queue.recording->emplace_back(std::move(work));
  } else {
    work(queue);
  }
  return {};
}

}  // namespace sluice::cpu
