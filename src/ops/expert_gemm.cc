#include "ops/expert_gemm.h"

#include <cmath>

#include "ops/bounds.h"
#include "ops/reference/activation_bounds.h"
#include "ops/reference/weight_bounds.h"

namespace sluice {

Refusal ExpertGemm::validate(const Problem& p) {
  Refusal r;
  need_between(r, "rows", p.rows, 0, kRowsMax);
  need_between(r, "rows_expected", p.rows_expected, 0, kRowsMax);
  need_between(r, "experts", p.experts, 1, 2048);
  r.need(p.experts_routed == 0 || p.experts_routed >= p.experts, "experts_routed 0 or at least experts",
         "experts_routed", p.experts_routed);
  need_between(r, "features", p.features, 1, kWidthMax);
  need_between(r, "width", p.width, 1, kWidthMax);
  need_between(r, "slots", p.slots, 0, 64);
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_float(r, "x", p.x);
  need_float(r, "b", p.b);
  need_float(r, "y", p.y);
  need_weight_format(r, format(p), p.width);
  r.need(!p.weighted || p.slots > 0, "slots > 0 (router weights belong to slots)", "slots", p.slots);
  need_activation(r, p.act, {p.alpha, p.beta, p.limit}, p.per_expert);
  return r;
}

double ExpertGemm::expected_rows(const Problem& p) {
  if (p.rows_expected > 0) return static_cast<double>(p.rows_expected);
  const double rows = static_cast<double>(p.rows);
  if (p.experts_routed == 0) return rows;
  return rows * static_cast<double>(p.experts) / static_cast<double>(p.experts_routed);
}

double ExpertGemm::bytes(const Problem& p) {
  const double rows = expected_rows(p);
  const double active = active_experts(rows, p.experts);
  const double w_bits = format(p).bits();
  return active * static_cast<double>(weight_rows(p)) * static_cast<double>(p.width) * w_bits / 8 +
         rows * static_cast<double>(bytes_of(p.x, p.width) + bytes_of(p.y, p.features));
}

double ExpertGemm::flops(const Problem& p) {
  const double rows = expected_rows(p);
  return 2.0 * rows * static_cast<double>(weight_rows(p)) * static_cast<double>(p.width);
}

double active_experts(double rows, int64_t experts) {
  const double e = static_cast<double>(experts);
  return e * (1 - std::pow(1 - 1 / e, rows));
}

ExpertGemm::Problem ExpertGemm::at_tokens(Problem p, int64_t n) {
  if (p.slots == 0) return p.rows = n, p;
  p.rows += (n - p.tokens) * p.slots;
  p.tokens = n;
  return p;
}

}  // namespace sluice
