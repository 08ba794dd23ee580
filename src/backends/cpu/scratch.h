// Scratch memory with one part per thread of a loop. A plan assumes the threads
// of its own device, but it may run on a stream of a device with more threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "backends/cpu/queue.h"
#include "dispatch/candidate.h"

namespace sluice::cpu {

// Returns kInvalidArgument if `workspace` is too small for the threads of the stream. The stream then belongs to another device.
template <class Problem>
Status check_scratch(std::string_view kernel, const Problem& problem,
                     size_t (*workspace_bytes)(const Problem&, const DeviceInfo&), Workspace workspace,
                     Stream stream) {
  DeviceInfo device;
  device.cores = queue_of(stream).pool->threads();
  const size_t need = workspace_bytes(problem, device);
  if (workspace.bytes >= need) return {};
  return invalid(std::string(kernel) + ": stream: wanted a stream of the plan's device, whose threads need " +
                 std::to_string(workspace.bytes) + " bytes of workspace, found a stream of a device with " +
                 std::to_string(device.cores) + " threads, which need " + std::to_string(need));
}

// The number of threads of `pool` that `bytes` suffices for, with
// `per_thread` bytes each. This is fewer than all threads if a recording is
// replayed on a device with more threads than the device that recorded it.
inline int64_t slots_in(size_t bytes, size_t per_thread, const ThreadPool& pool) {
  return std::clamp<int64_t>(static_cast<int64_t>(bytes / per_thread), 1, pool.threads());
}

// ThreadPool::run() with body(begin, end, slot), slot in [0, slots). Two threads never have the same slot at once.
template <class Body>
void run_in_slots(ThreadPool& pool, int64_t slots, int64_t count, int64_t grain, Body&& body) {
  if (slots >= pool.threads()) return pool.run(count, grain, body);
  std::atomic<int64_t> next{0};
  pool.run(slots, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t slot = begin; slot < end; ++slot)
      for (int64_t at; (at = next.fetch_add(grain, std::memory_order_relaxed)) < count;)
        body(at, std::min(at + grain, count), static_cast<int>(slot));
  });
}

}  // namespace sluice::cpu
