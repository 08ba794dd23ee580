#include "ops/rms_norm.h"

#include <algorithm>

#include "ops/bounds.h"

namespace sluice {

Refusal RmsNorm::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "hidden", p.hidden, 1, kWidthMax);
  need_between(r, "heads", p.heads, 1, kWidthMax / std::clamp<int64_t>(p.hidden, 1, kWidthMax));
  need_real(r, "eps", "from 2^-100 to 1", p.eps >= 0x1p-100 && p.eps <= 1, p.eps);
  need_float(r, "x", p.x);
  need_float(r, "w", p.w);
  need_float(r, "y", p.y);
  return r;
}

double RmsNorm::bytes(const Problem& p) {
  const int64_t elements = p.tokens * p.heads * p.hidden;
  return static_cast<double>(bytes_of(p.x, elements)) * (1 + 2 * p.residual) +
         static_cast<double>(bytes_of(p.y, elements));
}

}  // namespace sluice
