#include "ops/group_rows.h"

namespace sluice {

Expectations reference(const GroupRows::Problem& p, const GroupRows::Args& a) {
  const int64_t flat = p.tokens * p.slots;
  Expected count{.slot = "row_count", .value = {}, .bound = {}},
      begin = count, order = count, position = count, tile_count = count, tiles = count;
  begin.slot = "row_begin";
  order.slot = "order";
  position.slot = "position";
  tile_count.slot = "tile_count";
  tiles.slot = "tiles";
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
    for (int64_t at = first; p.tile_rows > 0 && at < row; at += p.tile_rows)
      tiles.value.insert(tiles.value.end(), {static_cast<double>(e), static_cast<double>(at)});
    while (row % p.row_align != 0) ++row;
  }
  begin.value.push_back(static_cast<double>(row));
  Expectations out{count, begin, order, position};
  if (p.tile_rows == 0) return out;
  tile_count.value.push_back(static_cast<double>(tiles.value.size() / 2));
  tiles.value.resize(static_cast<size_t>(2 * GroupRows::tiles_max(p)), -1);
  out.push_back(tile_count);
  out.push_back(tiles);
  return out;
}

}  // namespace sluice
