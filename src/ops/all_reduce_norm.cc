#include "ops/all_reduce_norm.h"

#include "ops/bounds.h"

namespace sluice {

Refusal AllReduceNorm::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "hidden", p.hidden, kHiddenUnit, kHiddenMax);
  if (p.hidden % kHiddenUnit != 0) r.need(false, "hidden % 8 == 0", "hidden", p.hidden);
  need_between(r, "ranks", p.ranks, 1, kRanksMax);
  need_real(r, "eps", "from 2^-100 to 1", p.eps >= 0x1p-100 && p.eps <= 1, p.eps);
  need_float(r, "x", p.x);
  need_float(r, "w", p.w);
  return r;
}

double AllReduceNorm::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.x, p.tokens * p.hidden)) * (2 + p.residual + p.norm);
}

}  // namespace sluice
