#pragma once
#include "harness/cases.h"

namespace sluice::test {

// Like fill_floats, but only about one row in three has a NaN or infinity, and only one. With one in sixteen
// numbers, every long sum would be NaN.
inline void fill_rarely(const Tensor& t, Fill fill, Random& random, double scale = 1) {
  if (fill != Fill::kSomeNan && fill != Fill::kInfinite) return fill_floats(t, fill, random, scale);
  if (!t.present()) return;
  int64_t place = -1;
  double what = 0;
  set_each(t, [&](int64_t, int64_t c) {
    if (c == 0) {
      place = random.integer(0, 2) == 0 ? random.integer(0, t.shape[t.rank - 1] - 1) : -1;
      const double infinity = std::copysign(std::numeric_limits<double>::infinity(), random.normal());
      what = fill == Fill::kSomeNan ? std::numeric_limits<double>::quiet_NaN() : infinity;
    }
    const double x = random.normal() * scale;
    return c == place ? what : x;
  });
}

}  // namespace sluice::test
