// Confidence intervals and tests for measured accuracies.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct Interval {
  double low = 0, high = 1;
};
// Wilson's 95% score interval of `right` out of `questions`. If questions are repeated, `right` is the sum of the questions' mean scores. The
// interval is 0 to 1 if there are no questions.
Interval wilson(double right, int64_t questions);

// McNemar's exact test: the two-sided p-value of the hypothesis that wins and losses are equally likely. Returns 1 if there are neither.
double sign_test(int64_t wins, int64_t losses);

double mean_of(std::span<const double> values);
// Sample standard deviation; 0 for fewer than two values.
double deviation_of(std::span<const double> values);

}  // namespace sluice
