#include "backends/cpu/pool.h"

#include <algorithm>

namespace sluice::cpu {
namespace {

// About 20 us: longer than the gap between two kernels of a step, shorter than a user notices.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::take_chunks(int thread) {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return;
    call_(context_, begin, std::min(begin + grain_, count_), thread);
  }
}

void ThreadPool::run_erased(int64_t count, int64_t grain, Call call, void* context) {
  if (workers_.empty() || count <= grain) {  // one chunk: waking anybody costs more than it brings
    for (int64_t begin = 0; begin < count; begin += grain)
      call(context, begin, std::min(begin + grain, count), 0);
    return;
  }
  const std::scoped_lock lock(one_loop_);
  call_ = call;
  context_ = context;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);  // publishes all of the above
  loop_.notify_all();
  take_chunks(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now = loop_.load(std::memory_order_acquire);
    for (int spins = 0; now == seen && spins < kSpins; ++spins) {
      relax();
      now = loop_.load(std::memory_order_acquire);
    }
    while (now == seen) {
      loop_.wait(seen, std::memory_order_acquire);
      now = loop_.load(std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    take_chunks(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace sluice::cpu
