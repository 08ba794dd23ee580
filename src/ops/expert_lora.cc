#include "ops/expert_lora.h"

#include "ops/bounds.h"
#include "ops/expert_gemm.h"
#include "ops/reference/activation_bounds.h"

namespace sluice {

Refusal ExpertLora::validate(const Problem& p) {
  Refusal r;
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_between(r, "slots", p.slots, 1, 64);
  need_between(r, "experts", p.experts, 1, 2048);
  r.need(p.experts_routed == 0 || p.experts_routed >= p.experts, "experts_routed 0 or at least experts",
         "experts_routed", p.experts_routed);
  need_between(r, "features", p.features, 1, kWidthMax);
  need_between(r, "width", p.width, 1, kWidthMax);
  need_between(r, "rank", p.rank, 1, 1024);
  need_between(r, "adapters", p.adapters, 1, 1024);
  need_float(r, "x", p.x);
  need_float(r, "z", p.z);
  need_float(r, "w", p.w);
  need_float(r, "bias_type", p.bias_type);
  need_float(r, "y", p.y);
  need_activation(r, p.act, {p.alpha, p.beta, p.limit}, p.per_expert);
  r.need(!p.split || gated(p), "a gated activation for split",
         std::string("act=") + std::string(word(p.act)));
  return r;
}

double ExpertLora::expected_rows(const Problem& p) {
  const double rows = static_cast<double>(p.rows);
  if (p.experts_routed == 0) return rows;
  return rows * static_cast<double>(p.experts) / static_cast<double>(p.experts_routed);
}

double ExpertLora::bytes(const Problem& p) {
  const double rows = expected_rows(p);
  const double pairs = active_experts(rows, p.experts * p.adapters);
  return pairs * static_cast<double>(bytes_of(p.w, inner(p) * p.width + product_rows(p) * p.rank)) +
         rows * static_cast<double>(bytes_of(p.x, p.width) + bytes_of(p.z, z_columns(p)) +
                                    bytes_of(p.y, p.features));
}

double ExpertLora::flops(const Problem& p) {
  return 2.0 * expected_rows(p) * static_cast<double>(inner(p) * p.width + p.rank * product_rows(p));
}

ExpertLora::Problem ExpertLora::at_tokens(Problem p, int64_t n) {
  p.rows += (n - p.tokens) * p.slots;
  p.tokens = n;
  return p;
}

}  // namespace sluice
