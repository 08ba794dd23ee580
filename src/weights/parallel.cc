#include "weights/parallel.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace sluice {

void parallel_for(int threads, int64_t count, const std::function<void(int64_t)>& f) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) f(i);
  };
  std::vector<std::thread> others;
  const int64_t helpers = std::min<int64_t>(threads, count) - 1;
  try {
    for (int64_t i = 0; i < helpers; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: those there are do it all
  }
  work();
  for (std::thread& t : others) t.join();
}

}  // namespace sluice
