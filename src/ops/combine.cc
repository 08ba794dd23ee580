#include "ops/combine.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Combine::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_between(r, "slots", p.slots, 1, 64);
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "hidden", p.hidden, 1, kWidthMax);
  need_between(r, "experts", p.experts, p.bias ? 1 : 0, p.bias ? 2048 : kRowsMax);
  need_float(r, "g", p.g);
  need_float(r, "b", p.b);
  need_float(r, "y", p.y);
  need_moderate(r, "scale", p.scale);
  return r;
}

double Combine::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.g, p.tokens * p.slots * p.hidden)) +
         static_cast<double>(bytes_of(p.y, p.tokens * p.hidden)) * (1 + p.shared + p.residual);
}

Combine::Problem Combine::at_tokens(Problem p, int64_t n) {
  p.rows += (n - p.tokens) * p.slots;
  p.tokens = n;
  return p;
}

}  // namespace sluice
