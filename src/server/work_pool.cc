#include "server/work_pool.h"

#include <iterator>
#include <system_error>
#include <utility>

namespace sluice {

WorkPool::WorkPool(int threads) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (const std::system_error&) {
    end();  // joins the threads that have started
    throw;
  }
}

WorkPool::~WorkPool() { end(); }

void WorkPool::end() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
    for (Entry& entry : running_) entry.stop.request_stop();
  }
  wake_.notify_all();
  for (WorkerThread& thread : threads_) thread.join();
}

void WorkPool::submit(std::stop_source stop, Work work) {
  std::list<Entry> one;
  one.push_back({std::move(stop), std::move(work)});
  {
    const std::lock_guard lock(mutex_);
    waiting_.splice(waiting_.end(), one);
  }
  wake_.notify_one();
}

void WorkPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return end_ || !waiting_.empty(); });
    if (end_) return;
    running_.splice(running_.end(), waiting_,
                    waiting_.begin());  // splicing does not allocate
    const auto entry = std::prev(running_.end());
    lock.unlock();
    entry->work(entry->stop.get_token());
    entry->work = nullptr;  // frees the captured objects while the mutex is unlocked
    lock.lock();
    running_.erase(entry);
  }
}

}  // namespace sluice
