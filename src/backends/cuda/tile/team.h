// The routing problems for which tile/few_tokens.cuh and tile/lane_choice.cuh have kernels. Plain C++, for kernel descriptors.
#pragma once
#include <string>

#include "base/refusal.h"
#include "ops/route_topk.h"

namespace sluice::cuda::tile {

// A routing rule as a compile-time value. by_score rules also compute weights from the scores, so there is no rule that ranks by logits
// and weighs by sigmoids. grouped: there are 8 groups of 32 experts, of which the 4 with the largest sums of two best scores are kept.
struct TeamRule {
  RoutingRule::Score score = RoutingRule::Score::kLogit;
  RoutingRule::Weigh weigh = RoutingRule::Weigh::kScore;
  bool by_score = false;  // RouteTopk::chooses_by_score
  bool grouped = false;
  constexpr bool operator==(const TeamRule&) const = default;
};
constexpr int kTeamGroups = 8, kTeamGroupsKept = 4;

// The rules that have kernels.
enum TeamKind {
  kSoftmaxOfChosen,
  kSoftmaxAsItIs,
  kSoftmaxRenormalized,
  kBiasedSigmoid,
  kGroupedSigmoid,
  kBiasedSoftplus,
};
inline constexpr TeamRule kTeamRules[] = {
    {.weigh = RoutingRule::Weigh::kSoftmaxChosen},
    {.score = RoutingRule::Score::kSoftmaxAll},
    {.score = RoutingRule::Score::kSoftmaxAll, .weigh = RoutingRule::Weigh::kRenormalize},
    {.score = RoutingRule::Score::kSigmoid, .weigh = RoutingRule::Weigh::kRenormalize, .by_score = true},
    {.score = RoutingRule::Score::kSigmoid,
     .weigh = RoutingRule::Weigh::kRenormalize,
     .by_score = true,
     .grouped = true},
    {.score = RoutingRule::Score::kSqrtSoftplus, .weigh = RoutingRule::Weigh::kRenormalize, .by_score = true},
};

// X(experts, largest top_k, kind): the instantiated kernels.
#define SLUICE_TEAM_KERNELS(X)    \
  X(32, 4, kSoftmaxOfChosen)      \
  X(128, 4, kSoftmaxOfChosen)     \
  X(64, 8, kSoftmaxAsItIs)        \
  X(128, 8, kSoftmaxAsItIs)       \
  X(128, 8, kSoftmaxRenormalized) \
  X(256, 8, kGroupedSigmoid)      \
  X(256, 8, kBiasedSigmoid)       \
  X(256, 8, kBiasedSoftplus)      \
  X(384, 8, kBiasedSigmoid)       \
  X(384, 8, kBiasedSoftplus)

// True if a kernel with these parameters accepts the problem.
inline bool team_serves(const RouteTopk::Problem& p, int experts, int list, TeamKind kind) {
  const RoutingRule rule = routing_rule(p.method);
  const TeamRule wanted{.score = rule.score,
                        .weigh = rule.weigh,
                        .by_score = RouteTopk::chooses_by_score(p),
                        .grouped = rule.grouped && p.topk_groups != p.groups};
  const bool groups = !wanted.grouped || (p.groups == kTeamGroups && p.topk_groups == kTeamGroupsKept);
  return p.experts == experts && p.top_k <= list && kTeamRules[kind] == wanted && groups;
}
inline void need_team(Refusal& r, const RouteTopk::Problem& p, int64_t tokens_max) {
  r.need(p.tokens >= 1 && p.tokens <= tokens_max, "1 to " + std::to_string(tokens_max) + " tokens", "tokens",
         p.tokens);
  r.need(p.input == RoutingInput::kLogits && !routing_rule(p.method).by_hash, "experts chosen from logits",
         "method=" + std::string(word(p.method)));
  r.need(p.scope == ExpertScope::kAll, "scope=all", "scope=" + std::string(word(p.scope)));
  r.need(!p.padded && !p.capture, "no padding and no capture", p.padded ? "padded=1" : "capture=1");
  bool served = false;
#define SLUICE_SERVES(experts, list, kind) served |= team_serves(p, experts, list, kind);
  SLUICE_TEAM_KERNELS(SLUICE_SERVES)
#undef SLUICE_SERVES
  r.need(served, "a combination of rule, experts, groups and top_k with a kernel (listed in tile/team.h)",
         "method=" + std::string(word(p.method)) + " experts=" + std::to_string(p.experts) +
             " top_k=" + std::to_string(p.top_k));
}

}  // namespace sluice::cuda::tile
