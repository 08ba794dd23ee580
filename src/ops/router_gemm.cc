#include "ops/router_gemm.h"

#include "ops/bounds.h"

namespace sluice {

Refusal RouterGemm::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, 16384);
  need_between(r, "experts", p.experts, 1, 1024);
  need_between(r, "hidden", p.hidden, 1, kWidthMax);
  need_float(r, "x", p.x);
  need_float(r, "w", p.w);
  need_float(r, "y", p.y);
  return r;
}

double RouterGemm::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.x, p.tokens * p.hidden) +
                             bytes_of(p.w, p.experts * (p.hidden + p.bias)) +
                             bytes_of(p.y, p.tokens * p.experts));
}

}  // namespace sluice
