// A budget of steps for one compilation or one mask. Steps are counted and not timed, so the same text fails on every machine.
#pragma once
#include <cstdint>
#include <stop_token>

namespace sluice {

class Work {
 public:
  explicit Work(int64_t steps, std::stop_token stop = {}) : left_(steps), stop_(std::move(stop)) {}

  // False once the budget is spent or a stop was requested, and from then on.
  bool spend(int64_t steps) {
    left_ -= steps;
    if ((until_poll_ -= steps) < 0) poll();
    return left_ >= 0;
  }
  bool over() const { return left_ < 0; }
  bool stopped() const { return stop_.stop_requested(); }

 private:
  void poll() {
    until_poll_ = kPollSteps;
    if (stop_.stop_requested()) left_ = -1;
  }
  static constexpr int64_t kPollSteps = 1 << 14;  // well under a millisecond
  int64_t left_, until_poll_ = kPollSteps;
  std::stop_token stop_;
};

}  // namespace sluice
