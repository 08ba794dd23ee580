// A pool of threads that run one loop at a time.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace sluice::cpu {

// Loops are handed out in chunks from a shared counter, so which thread runs an index is not determined:
// kernels give each output element to exactly one index, and then results do not depend on threads. The
// caller takes part. Workers spin for a moment between loops (a step is hundreds of them, microseconds apart)
// and then sleep.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller counts as one; at least 1
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
  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0, grain_ = 1;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> loop_{0};  // odd or even does not matter: a new value is a new loop
  alignas(64) std::atomic<int> busy_{0};       // workers that have not finished the current loop
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace sluice::cpu
