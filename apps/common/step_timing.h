// The durations of a step that runs many times, for the output of `sluice moe`.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sluice::apps {

using Clock = std::chrono::steady_clock;

inline double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct StepTiming {
  int64_t tokens = 0;
  double median_ms = 0, fastest_ms = 0, slowest_ms = 0;
  bool same_bits = true;  // whether all timed runs gave the same bits as the untimed first run
  std::vector<std::pair<std::string, std::string>> kernels = {};  // stage and kernel

  // Sets the times from the durations of the runs, of which there must be at least one.
  void take(std::vector<double> ms) {
    std::sort(ms.begin(), ms.end());
    median_ms = ms[ms.size() / 2], fastest_ms = ms.front(), slowest_ms = ms.back();
  }
};

}  // namespace sluice::apps
