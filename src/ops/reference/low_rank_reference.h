// The parts of B (A x) in double precision, for the references of LoRA.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/op.h"

namespace sluice {

// One element of A x: the sum, the sum of its terms' magnitudes, and the loss from flushing to zero.
struct InnerSum {
  double value = 0, magnitude = 0, flushed = 0;
};

// A x for `count` rows of a, which has rows of `width` elements, from row `first` on, and row x_row of x.
inline std::vector<InnerSum> inner_sums(const Tensor& a, int64_t first, int64_t count, int64_t width,
                                        const Tensor& x, int64_t x_row) {
  std::vector<InnerSum> out(static_cast<size_t>(count));
  for (int64_t r = 0; r < count; ++r) {
    InnerSum& u = out[static_cast<size_t>(r)];
    for (int64_t h = 0; h < width; ++h) {
      const double w = load(a, (first + r) * width + h), v = load2(x, x_row, h);
      u.value += w * v;
      u.magnitude += std::abs(w * v);
      u.flushed += kFlush * (std::abs(w) + std::abs(v) + 1);
    }
  }
  return out;
}

// One element of B (A x). largest_inner: the largest magnitude of an element of A x.
struct LowRankSum {
  double value = 0, magnitude = 0, flushed = 0, largest_inner = 0;
};

// `row`: the row of b, whose rows have inner.size() elements.
inline LowRankSum low_rank_sum(const Tensor& b, int64_t row, std::span<const InnerSum> inner) {
  LowRankSum out;
  const auto rank = static_cast<int64_t>(inner.size());
  for (int64_t k = 0; k < rank; ++k) {
    const InnerSum& u = inner[static_cast<size_t>(k)];
    const double w = load(b, row * rank + k);
    out.value += w * u.value;
    out.magnitude += std::abs(w) * u.magnitude;
    out.flushed += std::abs(w) * u.flushed + kFlush * (std::abs(w) + u.magnitude + 1);
    out.largest_inner = std::max(out.largest_inner, u.magnitude);
  }
  return out;
}

}  // namespace sluice
