// Threads that do what would hold up a loop: reading JSON, making tokens of text, compiling grammars.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <stop_token>
#include <vector>

#include "base/worker_thread.h"

namespace sluice {

// Work may take long: it looks at its token, which is asked to stop when nobody wants the work any more.
class WorkPool {
 public:
  using Work = std::function<void(std::stop_token)>;  // must not throw

  // Throws std::system_error where the system has no more threads.
  explicit WorkPool(int threads);
  ~WorkPool();  // what has not begun is dropped, and what has is asked to stop and waited for
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  // Whoever asks for the work to stop does so by `stop`; it is begun in any case.
  void submit(std::stop_source stop, Work work);

 private:
  struct Entry {
    std::stop_source stop;
    Work work;
  };
  void run();
  void end();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<Entry> waiting_, running_;
  bool end_ = false;
  std::vector<WorkerThread> threads_;
};

}  // namespace sluice
