#include "ops/group_rows.h"

namespace sluice {

Expectations reference(const GroupRows::Problem& p, const GroupRows::Args& a) {
  const int64_t flat = p.tokens * p.slots;
  Expected count{.slot = "row_count", .value = {}, .bound = {}}, begin = count, order = count,
                                                                 position = count;
  begin.slot = "row_begin";
  order.slot = "order";
  position.slot = "position";
  order.value.assign(static_cast<size_t>(GroupRows::rows(p)), -1);
  position.value.assign(static_cast<size_t>(flat), -1);
  int64_t row = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    begin.value.push_back(static_cast<double>(row));
    const int64_t first = row;
    for (int64_t f = 0; f < flat; ++f) {
      if (a.ids.as<int32_t>()[f] != e) continue;
      order.value[static_cast<size_t>(row)] = static_cast<double>(f);
      position.value[static_cast<size_t>(f)] = static_cast<double>(row++);
    }
    count.value.push_back(static_cast<double>(row - first));
    while (row % p.row_align != 0) ++row;
  }
  begin.value.push_back(static_cast<double>(row));
  return {count, begin, order, position};
}

}  // namespace sluice
