// Threads that do what would hold up a loop: reading JSON, making tokens of text.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "base/worker_thread.h"

namespace sluice::apps {

class WorkPool {
 public:
  explicit WorkPool(int threads);
  ~WorkPool();  // what has not begun is dropped
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  void submit(std::function<void()> work);

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool end_ = false;
  std::vector<WorkerThread> threads_;
};

}  // namespace sluice::apps
