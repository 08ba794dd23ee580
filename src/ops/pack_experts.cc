#include "ops/pack_experts.h"

#include "ops/bounds.h"

namespace sluice {

Refusal PackExperts::validate(const Problem& p) {
  Refusal r;
  need_between(r, "experts", p.experts, 0, 2048);
  need_between(r, "features", p.features, 1, kWidthMax);
  need_between(r, "width", p.width, 1, kWidthMax);
  r.need(p.w == DType::kBF16 || p.w == DType::kE2M1, "w in bf16 or e2m1", std::string("w=") + text(p.w));
  if (p.w == DType::kE2M1)
    r.need(p.width % kMxBlock == 0, "width % 32 == 0 (one scale for 32 codes)", "width", p.width);
  return r;
}

double PackExperts::bytes(const Problem& p) {
  const bool fp4 = p.w == DType::kE2M1;
  const int64_t packed = shape(p).code_bytes(fp4) + (fp4 ? shape(p).scale_bytes() : 0);
  return static_cast<double>(p.experts) *
         static_cast<double>(weight_rows(p) * (row_bytes(p) + row_scale_bytes(p)) + packed);
}

}  // namespace sluice
