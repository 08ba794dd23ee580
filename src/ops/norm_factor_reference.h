// Helpers shared by references of operations that apply a row's norm as a factor of sums over the row.
#pragma once
#include <span>
#include <vector>

#include "ops/rms_norm.h"

namespace sluice {

// Bounds the difference between a sum over a normed row and a sum whose norm was rounded at another point.
class NormFactor {
 public:
  // For row t. `normed` holds the rows used by the sums' reference, and each of its elements may be off by `share` of its value.
  NormFactor(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const Tensor& normed, int64_t t,
             double share);
  // The additional bound of a sum with weights of these magnitudes, beyond the bound of a sum over
  // `normed`. Infinity: the sum is unspecified.
  double more(std::span<const double> w) const;

 private:
  double share_, squares_ = 0;
  // magnitudes of the norm and of what is multiplied in its place; units that may be flushed
  std::vector<double> normed_, before_, flushed_;
};

// The bound of a value rounded to `dtype` if its sum may be off by an additional `more`.
double widened(DType dtype, double value, double bound, double more);

}  // namespace sluice
