#include "ops/pack_experts.h"

#include "ops/bounds.h"
#include "ops/reference/weight_bounds.h"

namespace sluice {

Refusal PackExperts::validate(const Problem& p) {
  Refusal r;
  need_between(r, "experts", p.experts, 0, 2048);
  need_between(r, "features", p.features, 1, kWidthMax);
  need_between(r, "width", p.width, 1, kWidthMax);
  need_weight_format(r, format(p), p.width);
  return r;
}

double PackExperts::bytes(const Problem& p) {
  const int64_t packed = shape(p).code_bytes(format(p)) + shape(p).scale_bytes(format(p));
  return static_cast<double>(p.experts) *
         static_cast<double>(weight_rows(p) * (row_bytes(p) + row_scale_bytes(p)) + packed);
}

}  // namespace sluice
