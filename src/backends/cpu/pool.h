// A pool of threads that run one loop at a time.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/worker_thread.h"

namespace sluice::cpu {

// Loops are handed out in chunks from a shared counter, so which thread runs an index is not determined:
// kernels give each output element to exactly one index, and then results do not depend on threads. The
// caller takes part, and waits for chunks, never for threads: a worker that the system does not run takes no
// chunk and delays no other. Workers spin for a moment between loops (a step is hundreds of them,
// microseconds apart) and then sleep.
class ThreadPool {
 public:
  // The caller counts as one; at least 1. Where the system refuses, threads() says how many there are.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) over [0, count) in chunks of at most `grain`; returns when all are done.
  // Does not allocate. Concurrent callers wait for each other. `thread` is in [0, threads()).
  template <class Body>
  void run(int64_t count, int64_t grain, Body&& body) {
    if (count <= 0) return;
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        count, grain < 1 ? 1 : grain,
        [](void* context, int64_t begin, int64_t end, int thread) {
          (*static_cast<Plain*>(context))(begin, end, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, int64_t begin, int64_t end, int thread);
  void run_erased(int64_t count, int64_t grain, Call call, void* context);
  void work(int thread);
  void take_chunks(int thread);

  std::mutex one_loop_;  // held by the caller for the length of its loop
  // The current loop. Written while no chunk of the last one is left, so a thread that claims a chunk has read
  // its own loop's.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0}, grain_{1}, chunks_{0};
  // The loop's number above, the next chunk below: a claim fails once another loop has begun.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};   // chunks of the current loop that are finished
  alignas(64) std::atomic<uint32_t> loop_{0};  // what workers sleep on: a new value is a new loop
  std::atomic<bool> stop_{false};
  std::vector<WorkerThread> workers_;
};

}  // namespace sluice::cpu
