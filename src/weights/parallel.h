// Start-up work on several threads.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/worker_thread.h"

namespace sluice {

// Calls f(i) once for each i from 0 to count - 1, on the caller and up to threads - 1 more threads, and returns when all are
// done. threads 0: one for each processor. f must not throw. Where the system has no more threads, fewer do the work.
void parallel_for(int threads, int64_t count, const std::function<void(int64_t)>& f);

// Threads that stay for many small loops, each too short to start threads for. One loop at a time.
class Workers {
 public:
  explicit Workers(int threads);  // as parallel_for
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  void run(int64_t count, const std::function<void(int64_t)>& f);  // as parallel_for
  // The same, beside `meanwhile` on the caller's thread; then the caller joins in. What meanwhile waits for must not need more
  // threads than helpers().
  void run(int64_t count, const std::function<void(int64_t)>& f, const std::function<void()>& meanwhile);
  int helpers() const { return static_cast<int>(helpers_.size()); }  // threads besides the caller's

 private:
  struct Loop;
  void work();

  std::mutex mutex_;
  std::condition_variable start_, done_;
  Loop* loop_ = nullptr;  // under way, or null
  int64_t loops_ = 0;     // begun so far
  bool stop_ = false;
  std::vector<WorkerThread> helpers_;
};

}  // namespace sluice
