#include "ops/fused/combine_norm.h"

namespace sluice {

Refusal CombineNorm::validate(const Problem& p) {
  Refusal r = Combine::validate(p.combine);
  r.append(RmsNorm::validate(norm(p)));
  return r;
}

double CombineNorm::bytes(const Problem& p) {
  const double read_again = static_cast<double>(bytes_of(p.combine.y, p.combine.tokens * p.combine.hidden));
  return Combine::bytes(p.combine) + RmsNorm::bytes(norm(p)) - read_again;
}

Expectations reference(const CombineNorm::Problem& p, const CombineNorm::Args& a) {
  return reference(p.combine, static_cast<const Combine::Args&>(a));
}

Expectations reference_given(const CombineNorm::Problem& p, const CombineNorm::Args& a) {
  Expectations out = reference(CombineNorm::norm(p), CombineNorm::norm(a));
  out[0].slot = "normed";
  return out;
}

}  // namespace sluice
