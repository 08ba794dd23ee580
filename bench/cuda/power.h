// Power and clock of the GPU while something runs, as the driver tells them.
#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sluice::bench {

class Power {
 public:
  using Clock = std::chrono::steady_clock;
  struct Mean {
    double watts = 0, sm_mhz = 0;
    int64_t samples = 0;  // 0: nothing is known
  };

  // Reads them every few milliseconds from now on, on a thread of its own. Without NVIDIA's management library it knows
  // nothing, and problem() says why.
  Power();
  ~Power();
  Power(const Power&) = delete;
  Power& operator=(const Power&) = delete;
  const std::string& problem() const { return problem_; }
  // Over what was read from `from` to `to`.
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
  std::thread thread_;
};

}  // namespace sluice::bench
