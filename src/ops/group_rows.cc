#include "ops/group_rows.h"

#include "ops/bounds.h"

namespace sluice {

Refusal GroupRows::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_between(r, "slots", p.slots, 1, 64);
  need_between(r, "experts", p.experts, 1, 2048);
  need_between(r, "row_align", p.row_align, 1, 256);
  r.need((p.row_align & (p.row_align - 1)) == 0, "row_align a power of two", "row_align", p.row_align);
  if (p.tile_rows != 0) {
    need_between(r, "tile_rows", p.tile_rows, 8, 256);
    r.need((p.tile_rows & (p.tile_rows - 1)) == 0, "tile_rows a power of two", "tile_rows", p.tile_rows);
  }
  if (r.accepted()) need_between(r, "rows", rows(p), 0, kRowsMax);
  return r;
}

double GroupRows::bytes(const Problem& p) {
  return 4.0 * (2.0 * p.tokens * p.slots + rows(p) + 2 * p.experts + 1 + 2 * tiles_max(p));
}

}  // namespace sluice
