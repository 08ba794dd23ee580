// Prometheus' text format, the answer of a server's /metrics.
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
  // Null: there is no such label.
  const std::string* label(std::string_view label_name) const;
};

// Calls `take` for each sample, in the order of the page. Skips comments, and lines that are not valid samples. Ignores timestamps and
// exemplars.
void for_each_sample(std::string_view page, const std::function<void(const MetricSample&)>& take);

}  // namespace sluice
