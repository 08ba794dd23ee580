#include "timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace sluice::bench {

Sample measure(const std::function<void(int64_t)>& prepare, const std::function<void(int64_t)>& work,
               int64_t runs_min, double us_min) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> us;
  double total = 0;
  for (int64_t i = 0; i < runs_min + 1 || total < us_min; ++i) {
    prepare(i);
    const auto start = Clock::now();
    work(i);
    const double took = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
    if (i == 0) continue;
    us.push_back(took);
    total += took;
  }
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    return us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))];
  };
  return {at(0.5), at(0.1), at(0.9), us.front(), static_cast<int64_t>(us.size())};
}

}  // namespace sluice::bench
