#include "ops/sample.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Sample::validate(const Problem& p) {
  Refusal r;
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 1, int64_t{1} << 24);
  need_float(r, "logits", p.logits);
  return r;
}

double Sample::bytes(const Problem& p) { return static_cast<double>(bytes_of(p.logits, p.rows * p.vocab)); }

}  // namespace sluice
