// A step budget for one compilation or one mask. It counts steps instead of time, so an input that exceeds it does so on every machine.
#pragma once
#include <cstdint>
#include <stop_token>

namespace sluice {

class Work {
 public:
  explicit Work(int64_t steps, std::stop_token stop = {}) : left_(steps), stop_(std::move(stop)) {}

  // Returns false once the budget is spent or stop is requested, and on every later call.
  bool spend(int64_t steps) {
    left_ -= steps;
    if ((until_poll_ -= steps) < 0) poll();
    return left_ >= 0;
  }
  bool over() const { return left_ < 0; }
  // A budget of left() / divisor steps.
  Work part(int64_t divisor) const { return Work(left_ / divisor, stop_); }
  int64_t left() const { return left_; }
  bool stopped() const { return stop_.stop_requested(); }

 private:
  void poll() {
    until_poll_ = kPollSteps;
    if (stop_.stop_requested()) left_ = -1;
  }
  static constexpr int64_t kPollSteps = 1 << 14;  // takes well under a millisecond
  int64_t left_, until_poll_ = kPollSteps;
  std::stop_token stop_;
};

}  // namespace sluice
