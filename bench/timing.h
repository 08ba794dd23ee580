// Repeated measurement. Reports the median and quantiles, never a mean.
#pragma once
#include <cstdint>
#include <functional>

namespace sluice::bench {

struct Sample {
  double median_us = 0, p10_us = 0, p90_us = 0, best_us = 0;
  int64_t runs = 0;
};

// Calls work(i) for i = 0, 1, ...: once to warm up, then until both `runs_min` runs and `us_min` of them are done. prepare(i) runs before
// each call and is not timed.
Sample measure(const std::function<void(int64_t)>& prepare, const std::function<void(int64_t)>& work,
               int64_t runs_min, double us_min);

}  // namespace sluice::bench
