#include "bandwidth.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backends/cpu/pool.h"
#include "timing.h"

namespace sluice::bench {
namespace {

constexpr int64_t kBuffer = int64_t{1} << 30;  // twice the largest last-level caches

// Sixteen independent sums hide the latency of additions. Prefetches `ahead` bytes ahead.
uint64_t sum_of(const uint64_t* words, int64_t count, int64_t ahead) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    if (ahead) {
      __builtin_prefetch(reinterpret_cast<const char*>(words + i) + ahead);
      __builtin_prefetch(reinterpret_cast<const char*>(words + i) + ahead + 64);
    }
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

Result<double> read_bytes_per_us(Device& device) {
  // Allocated like the weights, so that page sizes do not make a difference.
  Result<void*> memory = device.allocate(kBuffer);
  if (!memory.ok()) return memory.status();
  const int threads = device.info().cores;
  const std::span<uint64_t> buffer(static_cast<uint64_t*>(memory.value()), kBuffer / sizeof(uint64_t));
  std::fill(buffer.begin(), buffer.end(), 1);
  cpu::ThreadPool pool(threads);
  double best = 0;
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  for (int64_t ahead : {0, 1024}) {
    constexpr int64_t kPiece = 1 << 17;  // words; 1 MiB
    const auto read = [&](int64_t) {
      pool.run(static_cast<int64_t>(buffer.size()) / kPiece, 1, [&](int64_t begin, int64_t end, int thread) {
        sums[static_cast<size_t>(thread) * 8] +=
            sum_of(buffer.data() + begin * kPiece, (end - begin) * kPiece, ahead);
      });
    };
    const Sample s = measure([](int64_t) {}, read, 5, 0);
    best = std::max(best, static_cast<double>(kBuffer) / s.best_us);
  }
  device.release(memory.value());
  return best;
}

}  // namespace sluice::bench
