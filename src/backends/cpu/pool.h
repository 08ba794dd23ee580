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

// Threads claim chunks of a loop from a shared counter, so any thread may run any index. A
// kernel assigns each output element to exactly one index, so its results do not depend on the
// threads. The caller takes part and waits for chunks, never for threads: if the system does not
// run a worker, that worker claims no chunk and delays no other thread. Between loops workers
// spin briefly, because a step has hundreds of loops, microseconds apart; then they sleep.
class ThreadPool {
 public:
  // threads: includes the caller; at least 1. If the system refuses some, threads() returns the number that exists.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, thread) over [0, count) in chunks of at most `grain`; returns when all are done. Does not allocate. Concurrent
  // callers wait for each other. `thread` is in [0, threads()).
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

  std::mutex one_loop_;  // the caller holds it during its loop
  // The current loop. It is written only when no chunk of the previous loop is left,
  // so a thread that has claimed a chunk has read the data of that chunk's loop.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0}, grain_{1}, chunks_{0};
  // The loop's number in the high half, the next chunk in the low half. So a claim fails if another loop has started.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};   // finished chunks of the current loop
  alignas(64) std::atomic<uint32_t> loop_{0};  // workers sleep until it changes, which means a new loop
  std::atomic<bool> stop_{false};
  std::vector<WorkerThread> workers_;
};

}  // namespace sluice::cpu
