#include "weights/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

namespace sluice {

struct Workers::Loop {
  int64_t count;
  const std::function<void(int64_t)>& f;
  std::atomic<int64_t> next{0};
  int helping = 0;  // guarded by mutex_
  void work() {
    for (int64_t i = next++; i < count; i = next++) f(i);
  }
};

Workers::Workers(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // no more threads: the existing ones do all the work
  }
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (WorkerThread& t : helpers_) t.join();
}

void Workers::run(int64_t count, const std::function<void(int64_t)>& f) {
  run(count, f, [] {});
}

void Workers::run(int64_t count, const std::function<void(int64_t)>& f,
                  const std::function<void()>& meanwhile) {
  Loop loop{.count = count, .f = f};
  {
    const std::lock_guard lock(mutex_);
    loop_ = &loop, ++loops_;
  }
  start_.notify_all();
  meanwhile();
  loop.work();
  std::unique_lock lock(mutex_);
  loop_ = nullptr;  // threads that wake up later have nothing left to do
  done_.wait(lock, [&] { return loop.helping == 0; });
}

void Workers::work() {
  int64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || (loop_ && loops_ != seen); });
    if (stop_) return;
    Loop* loop = loop_;
    seen = loops_;
    ++loop->helping;
    lock.unlock();
    loop->work();
    lock.lock();
    if (--loop->helping == 0) done_.notify_one();
  }
}

void parallel_for(int threads, int64_t count, const std::function<void(int64_t)>& f) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  Workers(static_cast<int>(std::min<int64_t>(threads, std::max<int64_t>(count, 1)))).run(count, f);
}

}  // namespace sluice
