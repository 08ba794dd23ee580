#include "backends/cpu/pool.h"

#include <algorithm>
#include <system_error>
#include <thread>

namespace sluice::cpu {
namespace {

// About 20 us: longer than the gap between two kernels of a step, too short for a user to notice.
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
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error&) {  // the system refuses more threads; the caller reads threads()
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  for (WorkerThread& worker : workers_) worker.join();
}

void ThreadPool::take_chunks(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const Call call = call_.load(std::memory_order_relaxed);
    void* const context = context_.load(std::memory_order_relaxed);
    const int64_t count = count_.load(std::memory_order_relaxed),
                  grain = grain_.load(std::memory_order_relaxed);
    const auto chunk = static_cast<int64_t>(ticket & UINT32_MAX);
    if (chunk >= chunks_.load(std::memory_order_acquire)) return;
    // Success means that this chunk was still unclaimed. So the caller is still in this loop, and all values read above belong to this loop.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      continue;
    ++ticket;
    call(context, chunk * grain, std::min((chunk + 1) * grain, count), thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::run_erased(int64_t count, int64_t grain, Call call, void* context) {
  // Chunks are counted in 32 bits.
  grain = std::max(grain, (count + UINT32_MAX - 1) / UINT32_MAX);
  if (workers_.empty() || count <= grain) {  // one chunk: to wake a thread costs more time than it saves
    for (int64_t begin = 0; begin < count; begin += grain)
      call(context, begin, std::min(begin + grain, count), 0);
    return;
  }
  const std::scoped_lock lock(one_loop_);
  const int64_t chunks = (count + grain - 1) / grain;
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  grain_.store(grain, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  // If this loop has more chunks than the previous one, a worker could still claim one with the previous ticket. So the
  // new ticket is stored first, while there are no chunks; storing the number of chunks then lets workers claim them.
  chunks_.store(0, std::memory_order_relaxed);
  ticket_.store(number << 32, std::memory_order_release);
  chunks_.store(chunks, std::memory_order_release);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
  take_chunks(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
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
  }
}

}  // namespace sluice::cpu
