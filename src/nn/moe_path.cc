#include "nn/moe_path.h"

#include <algorithm>
#include <type_traits>

#include "dispatch/composition.h"

namespace sluice {
namespace {

// The largest count that a kernel of ExpertMlp's own takes; -1: none.
int64_t last_count(const DeviceInfo& device, std::span<const Candidate<ExpertMlp>* const> table,
                   const ExpertMlp::Problem& problem, int64_t tokens_max, const Policy& policy) {
  if (!ExpertMlp::validate(ExpertMlp::at_tokens(problem, tokens_max)).accepted()) return -1;
  int64_t last = -1;
  for (const Candidate<ExpertMlp>* c : table) {
    if (!c->parts.empty() || c->backend != device.backend) continue;
    if (policy.batch_invariant && !c->batch_invariant) continue;
    for (int64_t tokens = tokens_max; tokens > last; --tokens)
      if (c->supports(ExpertMlp::at_tokens(problem, tokens), device).accepted()) last = tokens;
  }
  return last;
}

}  // namespace

std::optional<MoeAsOne> MoeAsOne::make(const DeviceInfo& device, const Catalog& catalog,
                                       const MoeProblems& problems, int64_t tokens_max, const Policy& policy,
                                       const std::function<double(int64_t)>& parts_us) {
  const int64_t last = last_count(device, catalog.table<ExpertMlp>(), problems.as_one, tokens_max, policy);
  if (last < 0 || (policy.batch_invariant && last < tokens_max)) return {};
  const auto table_of = [&]<class Op>(std::type_identity<Op>, const typename Op::Problem& problem) {
    const auto table = catalog.table<Op>();
    return PlanTable<Op>::make(device, table, problem, last, policy_for<Op>(policy, table));
  };
  auto route = table_of(std::type_identity<RouterRoute>{}, problems.front);
  auto experts = table_of(std::type_identity<ExpertMlp>{}, problems.as_one);
  if (!route.ok() || !experts.ok()) return {};
  MoeAsOne out(std::move(route).value(), std::move(experts).value());
  if (policy.batch_invariant) {
    if (!out.wins_on_average(device, tokens_max, parts_us)) return {};
    out.steps_ = {{0, MoePath::kAsOne}};
    return out;
  }
  bool wins = false;
  const auto path_at = [&](int64_t tokens) {
    const std::optional<double> us = tokens <= last ? out.cost_us(tokens, device) : std::nullopt;
    return us && *us < parts_us(tokens) ? MoePath::kAsOne : MoePath::kParts;
  };
  const Status never_fails = for_each_change(
      std::min(tokens_max, last + 1),
      [&](int64_t, int64_t b) { return path_at(b) == out.steps_.back().path; },
      [&](int64_t tokens) -> Status {
        out.steps_.push_back({tokens, path_at(tokens)});
        wins |= out.steps_.back().path == MoePath::kAsOne;
        return {};
      });
  if (!never_fails.ok()) return {};
  return wins ? std::optional<MoeAsOne>(std::move(out)) : std::nullopt;
}

MoePath MoeAsOne::at(int64_t tokens) const {
  size_t i = steps_.size() - 1;
  while (i > 0 && steps_[i].first > tokens) --i;
  return steps_[i].path;
}

std::optional<double> MoeAsOne::cost_us(int64_t tokens, const DeviceInfo& device) const {
  if (experts_.at(tokens).is_composition()) return {};
  return route_.cost_us(tokens, device) + experts_.cost_us(tokens, device);
}

bool MoeAsOne::wins_on_average(const DeviceInfo& device, int64_t tokens_max,
                               const std::function<double(int64_t)>& parts_us) const {
  double shares = 0, counts = 0;
  for (int64_t tokens = 1;; tokens = std::min(2 * tokens, tokens_max)) {
    const std::optional<double> us = cost_us(tokens, device);
    if (!us) return false;
    shares += *us / parts_us(tokens), ++counts;
    if (tokens == tokens_max) break;
  }
  return shares < counts;
}

MoePath moe_path(const MoeConfig& config, int64_t tokens, const DeviceInfo& device, const Catalog& catalog,
                 const Policy& policy) {
  const MoeProblems p = problems_of(config);
  const PartOf<ExpertMlp> experts{ExpertMlp::at_tokens(p.as_one, tokens)};
  const auto table = catalog.table<ExpertMlp>();
  const Decision own =
      decide<ExpertMlp>(experts.problem, device, table, policy_for<ExpertMlp>(policy, table));
  if (own.chosen < 0 || !chosen<ExpertMlp>(own, table)->parts.empty()) return MoePath::kParts;
  const PartsCost as_one = cost_of_parts(
      device, catalog, policy, PartOf<RouterRoute>{RouterRoute::at_tokens(p.front, tokens)}, experts);
  const PartsCost parts =
      cost_of_parts(device, catalog, policy, PartOf<RouterGemm>{RouterGemm::at_tokens(p.router, tokens)},
                    PartOf<RouteGroup>{RouteGroup::at_tokens(p.route, tokens)},
                    PartOf<ExpertGemm>{ExpertGemm::at_tokens(p.mlp.up, tokens)},
                    PartOf<ExpertGemm>{ExpertGemm::at_tokens(p.mlp.down, tokens * slots_of(config))},
                    PartOf<Combine>{Combine::at_tokens(p.combine, tokens)});
  const bool both = as_one.refusal.accepted() && parts.refusal.accepted();
  return both && as_one.us < parts.us ? MoePath::kAsOne : MoePath::kParts;
}

}  // namespace sluice
