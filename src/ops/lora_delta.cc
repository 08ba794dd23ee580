#include "ops/lora_delta.h"

#include "ops/bounds.h"

namespace sluice {

Refusal LoraDelta::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "features", p.features, 1, kWidthMax);
  need_between(r, "hidden", p.hidden, 1, kWidthMax);
  need_between(r, "rank", p.rank, 1, 1024);
  need_between(r, "adapters", p.adapters, 1, 1024);
  need_float(r, "x", p.x);
  need_float(r, "w", p.w);
  need_float(r, "y", p.y);
  return r;
}

double LoraDelta::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.x, p.tokens * p.hidden) +
                             bytes_of(p.w, p.adapters * p.rank * (p.hidden + p.features)) +
                             2 * bytes_of(p.y, p.tokens * p.features));
}

}  // namespace sluice
