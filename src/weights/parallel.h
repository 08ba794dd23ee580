// Runs start-up work on several threads.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "base/worker_thread.h"

namespace sluice {

// Calls f(i) once for each i from 0 to count - 1, on the caller's thread and up to threads - 1 others, and
// returns when all calls have returned. threads == 0: one per processor. f must not throw. If the system
// cannot create that many threads, fewer threads do the work.
void parallel_for(int threads, int64_t count, const std::function<void(int64_t)>& f);

// A thread pool for many short loops, for which starting threads would cost too much. Runs one loop at a
// time.
class Workers {
 public:
  explicit Workers(int threads);  // threads: as in parallel_for
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  void run(int64_t count, const std::function<void(int64_t)>& f);  // as in parallel_for
  // Runs `meanwhile` on the caller's thread while the helpers run the loop; then the caller joins the loop.
  // If `meanwhile` waits for calls of f, helpers() threads must be able to finish those calls.
  void run(int64_t count, const std::function<void(int64_t)>& f, const std::function<void()>& meanwhile);
  int helpers() const { return static_cast<int>(helpers_.size()); }  // threads besides the caller's

 private:
  struct Loop;
  void work();

  std::mutex mutex_;
  std::condition_variable start_, done_;
  Loop* loop_ = nullptr;  // the running loop, or null
  int64_t loops_ = 0;     // loops started so far
  bool stop_ = false;
  std::vector<WorkerThread> helpers_;
};

}  // namespace sluice
