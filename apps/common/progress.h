// A progress line that is redrawn in place: "Loading safetensors [####....]  43%  5.40 of 12.80 GB  2.10 GB/s".
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace sluice::apps {

// Whether standard error is a terminal. Otherwise no progress is drawn.
bool people_are_watching();

class ProgressBar {
 public:
  explicit ProgressBar(std::string title) : title_(std::move(title)) {}
  void operator()(int64_t bytes_done, int64_t bytes_total);

 private:
  std::string title_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double shown_ = -1;
};

}  // namespace sluice::apps
