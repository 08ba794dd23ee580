#include "ops/rope.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Rope::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "heads", p.heads, 1, 4096);
  need_between(r, "head_dim", p.head_dim, 2, 1024);
  need_between(r, "rotary", p.rotary, 2, p.head_dim);
  if (r.accepted()) need_between(r, "first", p.first, 0, p.head_dim - p.rotary);
  need_between(r, "table_rows", p.table_rows, 1, kRowsMax);
  r.need(p.rotary % 2 == 0, "rotary % 2 == 0 (elements rotate in pairs)", "rotary", p.rotary);
  need_float(r, "x", p.x);
  return r;
}

double Rope::bytes(const Problem& p) {
  return 2.0 * static_cast<double>(bytes_of(p.x, p.tokens * p.heads * p.head_dim));
}

}  // namespace sluice
