#include "cuda/suites.h"

#include <algorithm>
#include <cmath>

#include "report/panels.h"

namespace sluice::bench {

bool Bench::wants(const std::string& model) const {
  const auto& models = options_.models;
  return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
}

int64_t Bench::tokens_max() const {
  return *std::max_element(options_.tokens.begin(), options_.tokens.end());
}

Status Bench::hold(const Contest& contest, std::vector<std::string> complaints) const {
  std::vector<Outcome> outcomes;
  const Status status = measure(device_, contest, options_.replays, &outcomes, &complaints);
  SLUICE_TRY(report_(outcomes, complaints));
  return status;
}

int64_t launches_for(int64_t weight_bytes, double bytes, double flops) {
  constexpr double kShortestUs = 400;  // of a recording: a hundred times what starting it may cost
  constexpr double kOverheadUs = 1.5;  // of a run, beyond its floor
  constexpr int64_t kFewest = 10, kMost = 200;
  const double us = floor_us(bytes, flops) + kOverheadUs;
  const int64_t timed = std::clamp(static_cast<int64_t>(std::ceil(kShortestUs / us)), kFewest, kMost);
  if (weight_bytes == 0) return timed;
  // Between two turns of a weight: all the other weights, and the activations that take turns.
  const double others =
      std::min(kTurns * (bytes - static_cast<double>(weight_bytes)), static_cast<double>(kColdBytes));
  const double cold = (static_cast<double>(kColdBytes) - others) / static_cast<double>(weight_bytes);
  return std::max(timed, static_cast<int64_t>(std::ceil(cold)));
}

}  // namespace sluice::bench
