// Reads Prometheus' text format, in which servers answer /metrics.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

struct MetricSample {
  std::string name;
  std::vector<std::pair<std::string, std::string>> labels;  // in the order of the line, unescaped
  double value = 0;                                         // may be NaN or infinite
  // The value of a label; null: there is no such label.
  const std::string* label(std::string_view label_name) const;
};

// Calls `take` for each sample, in the order of the page. Skips comments and invalid lines, and ignores the timestamps and exemplars of
// samples.
void for_each_sample(std::string_view page, const std::function<void(const MetricSample&)>& take);

}  // namespace sluice
