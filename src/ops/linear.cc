#include "ops/linear.h"

#include "ops/bounds.h"

namespace sluice {

Refusal Linear::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax);
  need_between(r, "features", p.features, 1, int64_t{1} << 20);
  need_between(r, "width", p.width, 1, int64_t{1} << 20);
  need_float(r, "x", p.x);
  need_float(r, "w", p.w);
  need_float(r, "y", p.y);
  r.need(p.layout != WeightLayout::kFragments, "layout row_major or panels16",
         "layout=" + std::string(word(p.layout)));
  if (p.layout == WeightLayout::kPanels16)
    r.need(p.w == DType::kBF16, "w in bf16 (in linear, panels16 supports only bf16)",
           std::string("w=") + text(p.w));
  return r;
}

double Linear::bytes(const Problem& p) {
  return static_cast<double>(bytes_of(p.w, p.features * p.width)) +
         static_cast<double>(bytes_of(p.x, p.tokens * p.width)) +
         static_cast<double>(bytes_of(p.y, p.tokens * p.features)) * (1 + p.residual);
}

}  // namespace sluice
