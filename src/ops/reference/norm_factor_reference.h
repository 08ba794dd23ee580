// Helpers shared by references of operations that apply a row's norm factor to sums over the row.
#pragma once
#include <span>
#include <vector>

#include "ops/rms_norm.h"

namespace sluice {

// Bounds the difference between a sum over a normalized row and the same sum with the norm rounded at another point.
class NormFactor {
 public:
  // For row t. `normed` holds the rows that the reference sums; each element may be off by `share` of its value.
  NormFactor(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const Tensor& normed, int64_t t,
             double share);
  // The additional bound of a sum with weights of these magnitudes, beyond the bound of a sum over
  // `normed`. Infinity: the sum is unspecified.
  double more(std::span<const double> w) const;

 private:
  double share_, squares_ = 0;
  // per element: |normed|; |x weight|, which a kernel may sum instead; the loss from flushing to zero
  std::vector<double> normed_, before_, flushed_;
};

// The bound of a value rounded to `dtype` if its sum may be off by an additional `more`.
double widened(DType dtype, double value, double bound, double more);

}  // namespace sluice
