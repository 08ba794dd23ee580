// Rows of experts as ops/group_rows.h places them, for the cases of operations that read grouped rows.
#pragma once
#include <algorithm>
#include <vector>

#include "harness/cases.h"

namespace sluice::test {

// Assigns rows 0 to assigned - 1 to experts in ascending order, with gaps where `rows` leaves space. Fill::kSkewed: all to one expert. Writes
// row_begin, row_count and, if present, order.
template <class Args>
void place_rows(const Args& a, int64_t experts, int64_t rows, int64_t assigned, Fill fill, Random& random) {
  const int64_t favourite = random.integer(0, experts - 1);
  std::vector<std::vector<int32_t>> of(static_cast<size_t>(experts));
  for (int64_t f = 0; f < assigned; ++f) {
    const int64_t e = fill == Fill::kSkewed ? favourite : random.integer(0, experts - 1);
    of[static_cast<size_t>(e)].push_back(static_cast<int32_t>(f));
  }
  int64_t next = 0, slack = rows - assigned;
  if (a.order.present()) set_each(a.order, [](int64_t, int64_t) { return -1; });
  for (int64_t e = 0; e < experts; ++e) {
    const auto& mine = of[static_cast<size_t>(e)];
    a.row_begin.template as<int32_t>()[e] = static_cast<int32_t>(next);
    a.row_count.template as<int32_t>()[e] = static_cast<int32_t>(mine.size());
    for (int32_t f : mine) {
      if (a.order.present()) a.order.template as<int32_t>()[next] = f;
      ++next;
    }
    const int64_t gap = random.integer(0, std::min<int64_t>(slack, 3));
    next += gap, slack -= gap;
  }
  a.row_begin.template as<int32_t>()[experts] = static_cast<int32_t>(next);
}

}  // namespace sluice::test
