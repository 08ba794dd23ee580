#include "ops/route_topk.h"

#include <algorithm>

#include "ops/bounds.h"
#include "ops/reference/route_bounds.h"

namespace sluice {

Refusal RouteTopk::validate(const Problem& p) {
  Refusal r;
  need_between(r, "tokens", p.tokens, 0, kRowsMax / 64);
  need_between(r, "experts", p.experts, 1, kRoutedExpertsMax);
  need_between(r, "top_k", p.top_k, 1, std::min(p.experts, kRoutedTopKMax));
  need_between(r, "shared_slots", p.shared_slots, 0, 8);
  need_real(r, "scale", "a number above 0 and below 1e30", p.scale > 0 && p.scale < 1e30, p.scale);
  // Checked even if unused, because a negative count is always an error.
  need_between(r, "topk_groups", p.topk_groups, 0, kRowsMax);
  need_between(r, "expert_begin", p.expert_begin, 0, kRowsMax);
  need_between(r, "expert_count", p.expert_count, 0, kRowsMax);
  need_between(r, "vocab", p.vocab, 0, kRowsMax);
  if (p.scope == ExpertScope::kRange) {
    need_between(r, "expert_begin", p.expert_begin, 0, p.experts);
    need_between(r, "expert_count", p.expert_count, 0, p.experts - p.expert_begin);
  }
  if (p.input != RoutingInput::kLogits) {
    r.need(!p.bias, "no bias (the choice is made already)", "bias=1");
    r.need(p.groups == 1, "groups=1 (the choice is made already)", "groups", p.groups);
    return r;
  }
  need_float(r, "logits", p.logits);
  const RoutingRule rule = routing_rule(p.method);
  r.need(rule.biased || !p.bias, "no bias (this method has none)",
         std::string("method=") + std::string(word(p.method)));
  if (rule.by_hash) {
    need_between(r, "vocab", p.vocab, 1, kRowsMax);
    r.need(!p.bias, "no bias (a table chooses)", "bias=1");
  }
  if (!rule.grouped) {
    r.need(p.groups == 1, "groups=1 (this method has none)", "groups", p.groups);
    return r;
  }
  need_between(r, "groups", p.groups, 1, p.experts);
  if (!r.accepted()) return r;
  r.need(p.experts % p.groups == 0, "groups to divide experts", "groups", p.groups);
  need_between(r, "topk_groups", p.topk_groups, 1, p.groups);
  r.need(p.top_k <= p.topk_groups * (p.experts / p.groups), "top_k experts in topk_groups groups", "top_k",
         p.top_k);
  return r;
}

double RouteTopk::bytes(const Problem& p) {
  const int64_t out = p.top_k + p.shared_slots;
  const int64_t in = reads_logits(p) ? bytes_of(p.logits, p.tokens * p.experts) : p.tokens * p.top_k * 8;
  return static_cast<double>(in + p.tokens * out * 8);
}

RoutingRule routing_rule(RoutingMethod method) {
  using S = RoutingRule::Score;
  using W = RoutingRule::Weigh;
  switch (method) {
    case RoutingMethod::kRenormalize:
      return {S::kLogit, W::kSoftmaxChosen, false, false, false};
    case RoutingMethod::kRenormalizeNaive:
      return {S::kSoftmaxAll, W::kRenormalize, false, false, false};
    case RoutingMethod::kDefault:
      return {S::kSoftmaxAll, W::kScore, false, false, false};
    case RoutingMethod::kDeepSeekV3:
      return {S::kSigmoid, W::kRenormalize, true, true, false};
    case RoutingMethod::kGroupedSoftmax:
      return {S::kSoftmaxAll, W::kScore, false, true, false};
    case RoutingMethod::kSqrtSoftplus:
      return {S::kSqrtSoftplus, W::kRenormalize, true, false, false};
    case RoutingMethod::kHash:
      return {S::kSqrtSoftplus, W::kRenormalize, false, false, true};
    case RoutingMethod::kMiniMax2:
      return {S::kSigmoid, W::kRenormalize, true, false, false};
    case RoutingMethod::kLlama4:
      return {S::kLogit, W::kSigmoid, false, false, false};
    case RoutingMethod::kTopK:
      return {S::kLogit, W::kScore, false, false, false};
    case RoutingMethod::kSigmoid:
      return {S::kSigmoid, W::kScore, false, false, false};
    case RoutingMethod::kSigmoidRenorm:
      return {S::kSigmoid, W::kRenormalize, false, false, false};
  }
  return {S::kLogit, W::kScore, false, false, false};
}

}  // namespace sluice
