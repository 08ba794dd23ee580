// Threads for work that would block the server's loop, such as parsing JSON, tokenizing text and compiling grammars.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <stop_token>
#include <vector>

#include "base/worker_thread.h"

namespace sluice {

// Work that takes long must check its stop token, which is requested once nobody needs the result.
class WorkPool {
 public:
  using Work = std::function<void(std::stop_token)>;  // must not throw

  // Throws std::system_error if a thread cannot be created.
  explicit WorkPool(int threads);
  ~WorkPool();  // drops queued work; requests running work to stop and waits for it
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;
  // `stop` belongs to the token that `work` gets. Work is called even if stop was requested before, unless the pool is destroyed first.
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
