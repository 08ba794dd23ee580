// What references of operations share in which the norm of a row is a factor of sums over it.
#pragma once
#include <span>
#include <vector>

#include "ops/rms_norm.h"

namespace sluice {

// How far a sum over a normed row may be from one whose norm was rounded elsewhere.
class NormFactor {
 public:
  // Of row t; `normed` has the rows that the sums' reference is for, and may be off by `share` of each of its elements.
  NormFactor(const RmsNorm::Problem& problem, const RmsNorm::Args& args, const Tensor& normed, int64_t t,
             double share);
  // Of the sum with weights of these magnitudes, beyond the bound of a sum over `normed`. Infinity: the sum may be anything.
  double more(std::span<const double> w) const;

 private:
  double share_, squares_ = 0;
  std::vector<double> normed_, before_,
      flushed_;  // magnitudes: the norm, what is multiplied in its place; units that may be lost
};

// The bound of a value that is rounded to `dtype`, once its sum may be off by `more`.
double widened(DType dtype, double value, double bound, double more);

}  // namespace sluice
