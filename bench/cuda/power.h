// Power and clock of the GPU during a measurement, as the driver reports them.
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "base/worker_thread.h"

namespace sluice::bench {

class Power {
 public:
  using Clock = std::chrono::steady_clock;
  struct Mean {
    double watts = 0, sm_mhz = 0;
    int64_t samples = 0;  // 0: no data
  };

  // Samples power and clock every few milliseconds, on a separate thread. Without NVIDIA's management library there is no data,
  // and problem() returns the reason.
  Power();
  ~Power();
  Power(const Power&) = delete;
  Power& operator=(const Power&) = delete;
  const std::string& problem() const { return problem_; }
  // The mean over samples from `from` to `to`.
  Mean mean(Clock::time_point from, Clock::time_point to);

 private:
  struct Sample {
    Clock::time_point at;
    double watts, sm_mhz;
  };
  struct Library;
  void work();

  std::string problem_;
  Library* library_ = nullptr;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<Sample> samples_;
  WorkerThread thread_;
};

}  // namespace sluice::bench
