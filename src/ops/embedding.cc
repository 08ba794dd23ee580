#include "ops/embedding.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Embedding::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 1, kRowsMax);
  need_between(r, "hidden", p.hidden, 1, kWidthMax);
  need_float(r, "table", p.table);
  need_float(r, "y", p.y);
  return r;
}

double Embedding::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.table, p.tokens * p.hidden) + bytes_of(p.y, p.tokens * p.hidden));
}

}  // namespace sluice
