#include "ops/fused/expert_mlp.h"

#include "ops/bounds.h"
#include "ops/reference/weight_bounds.h"

namespace sluice {

GroupRows::Args ExpertMlp::group(const Args& a, const GroupRows::Args& groups) {
  GroupRows::Args out = groups;
  out.ids = a.ids;
  return out;
}

ExpertGemm::Args ExpertMlp::up(const Problem& p, const Args& a, const GroupRows::Args& groups,
                               const Tensor& h) {
  Tensor flat;
  if (p.weight_on_input) {
    flat = a.weights;
    flat.rank = 1, flat.shape[0] = rows(p), flat.stride[0] = 1;
  }
  return {.x = a.x,
          .w = a.up,
          .w_scale = a.up_scale,
          .bias = a.up_bias,
          .act_params = {},
          .row_begin = groups.row_begin,
          .row_count = groups.row_count,
          .order = groups.order,
          .weights = flat,
          .y = h};
}

ExpertGemm::Args ExpertMlp::down(const Args& a, const GroupRows::Args& groups, const Tensor& h,
                                 const Tensor& g) {
  return {.x = h,
          .w = a.down,
          .w_scale = a.down_scale,
          .bias = a.down_bias,
          .act_params = {},
          .row_begin = groups.row_begin,
          .row_count = groups.row_count,
          .order = {},
          .weights = {},
          .y = g};
}

Combine::Args ExpertMlp::combine(const Problem& p, const Args& a, const GroupRows::Args& groups,
                                 const Tensor& g) {
  return {.g = g,
          .position = groups.position,
          .ids = {},
          .weights = p.weight_on_input ? Tensor{} : a.weights,
          .bias = {},
          .shared = a.shared,
          .residual = a.residual,
          .y = a.y};
}

Refusal ExpertMlp::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_between(r, "slots", p.slots, 1, 64);
  need_between(r, "experts", p.experts, 1, 2048);
  r.need(p.experts_routed == 0 || p.experts_routed >= p.experts, "experts_routed 0 or at least experts",
         "experts_routed", p.experts_routed);
  for (const auto& [name, columns] :
       {std::pair{"hidden", p.hidden}, std::pair{"intermediate", p.intermediate}}) {
    need_between(r, name, columns, 1, kWidthMax);
    const int64_t step = WeightFormat{p.w, p.scales}.width_step();
    if (columns % step != 0)
      r.need(false, std::string(name) + " % 32 == 0 (codes come in blocks of 32)", name, columns);
  }
  need_float(r, "x", p.x);
  need_float(r, "b", p.b);
  need_float(r, "g", p.g);
  need_float(r, "y", p.y);
  need_weight_format(r, {p.w, p.scales}, 0);
  if (p.act == Activation::kSwiGluClamped || p.act == Activation::kSwiGluStep)
    need_real(r, "limit", "above 0 (infinity is no limit)", p.limit > 0, p.limit);
  need_moderate(r, "scale", p.scale);
  need_moderate(r, "alpha", p.alpha);
  need_moderate(r, "beta", p.beta);
  return r;
}

double ExpertMlp::bytes(const Problem& p) {
  const ExpertGemm::Problem first = up(p), second = down(p);
  const double rows_here = ExpertGemm::expected_rows(first);
  // Activations that the two GEMMs exchange through memory.
  const double between =
      rows_here * static_cast<double>(bytes_of(p.x, p.hidden + 2 * p.intermediate) + bytes_of(p.g, p.hidden));
  return ExpertGemm::bytes(first) + ExpertGemm::bytes(second) - between +
         static_cast<double>(bytes_of(p.x, p.tokens * p.hidden)) +
         static_cast<double>(bytes_of(p.y, p.tokens * p.hidden)) * (1 + p.shared + p.residual) +
         8.0 * static_cast<double>(rows(p));
}

double ExpertMlp::flops(const Problem& p) {
  return ExpertGemm::flops(up(p)) + ExpertGemm::flops(down(p)) + Combine::flops(combine(p));
}

}  // namespace sluice
