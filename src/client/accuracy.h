// How sure a share of right answers is.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct Interval {
  double low = 0, high = 1;
};
// Wilson's score interval of 95% for `right` of `questions`; with repeats `right` is the sum of each question's mean. 0 to 1 if
// there are no questions.
Interval wilson(double right, int64_t questions);

// Exact two-sided p-value that wins and losses are the toss of a fair coin (McNemar's exact test of paired answers). 1 without any.
double sign_test(int64_t wins, int64_t losses);

double mean_of(std::span<const double> values);
double deviation_of(std::span<const double> values);  // of a sample; 0 for fewer than two

}  // namespace sluice
