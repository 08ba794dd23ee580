#include "nn/moe_path.h"

#include <algorithm>
#include <type_traits>

namespace sluice {
namespace {

// The largest count that a kernel of ExpertMlp's own takes; -1: none.
int64_t last_count(const DeviceInfo& device, std::span<const Candidate<ExpertMlp>* const> table,
                   const ExpertMlp::Problem& problem, int64_t tokens_max, const Policy& policy) {
  if (!ExpertMlp::validate(ExpertMlp::at_tokens(problem, tokens_max)).accepted()) return -1;
  int64_t last = -1;
  for (const Candidate<ExpertMlp>* c : table) {
    if (c->in_turn || c->backend != device.backend) continue;
    if (policy.batch_invariant && !c->batch_invariant) continue;
    for (int64_t tokens = tokens_max; tokens > last; --tokens)
      if (c->supports(ExpertMlp::at_tokens(problem, tokens), device).accepted()) last = tokens;
  }
  return last;
}

// What the chosen kernel costs, and whether it is other operations' kernels; nothing where no kernel accepts the problem.
struct Choice {
  double us;
  bool in_turn;
};
template <class Op>
std::optional<Choice> choice(const typename Op::Problem& problem, int64_t tokens, const DeviceInfo& device,
                             const Catalog& catalog, const Policy& policy) {
  const auto table = catalog.table<Op>();
  const Decision decision = decide<Op>(Op::at_tokens(problem, tokens), device, table, policy);
  const Candidate<Op>* kernel = chosen<Op>(decision, table);
  if (!kernel) return {};
  return Choice{decision.verdicts[static_cast<size_t>(decision.chosen)].cost_us, kernel->in_turn};
}

}  // namespace

std::optional<MoeAsOne> MoeAsOne::make(const DeviceInfo& device, const Catalog& catalog,
                                       const MoeProblems& problems, int64_t tokens_max, const Policy& policy,
                                       const std::function<double(int64_t)>& parts_us) {
  const int64_t last = last_count(device, catalog.table<ExpertMlp>(), problems.as_one, tokens_max, policy);
  if (last < 0 || (policy.batch_invariant && last < tokens_max)) return {};
  auto route =
      PlanTable<RouterRoute>::make(device, catalog.table<RouterRoute>(), problems.front, last, policy);
  auto experts =
      PlanTable<ExpertMlp>::make(device, catalog.table<ExpertMlp>(), problems.as_one, last, policy);
  if (!route.ok() || !experts.ok()) return {};
  MoeAsOne out(std::move(route).value(), std::move(experts).value());
  if (policy.batch_invariant) {
    if (!out.wins_on_average(device, tokens_max, parts_us)) return {};
    out.steps_ = {{0, MoePath::kAsOne}};
    return out;
  }
  bool wins = false;
  for (int64_t tokens = 0; tokens <= tokens_max; ++tokens) {
    const std::optional<double> us = tokens <= last ? out.cost_us(tokens, device) : std::nullopt;
    const MoePath path = us && *us < parts_us(tokens) ? MoePath::kAsOne : MoePath::kParts;
    if (out.steps_.empty() || out.steps_.back().path != path) out.steps_.push_back({tokens, path});
    wins |= path == MoePath::kAsOne;
    if (tokens > last) break;  // nothing changes after it
  }
  return wins ? std::optional<MoeAsOne>(std::move(out)) : std::nullopt;
}

MoePath MoeAsOne::at(int64_t tokens) const {
  size_t i = steps_.size() - 1;
  while (i > 0 && steps_[i].first > tokens) --i;
  return steps_[i].path;
}

std::optional<double> MoeAsOne::cost_us(int64_t tokens, const DeviceInfo& device) const {
  if (experts_.at(tokens).in_turn()) return {};
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
  const auto of = [&]<class Op>(std::type_identity<Op>, const typename Op::Problem& problem, int64_t n) {
    return choice<Op>(problem, n, device, catalog, policy);
  };
  const auto experts = of(std::type_identity<ExpertMlp>{}, p.as_one, tokens);
  if (!experts || experts->in_turn) return MoePath::kParts;
  const auto route = of(std::type_identity<RouterRoute>{}, p.front, tokens);
  const auto router = of(std::type_identity<RouterGemm>{}, p.router, tokens);
  const auto group = of(std::type_identity<RouteGroup>{}, p.route, tokens);
  const auto up = of(std::type_identity<ExpertGemm>{}, p.mlp.up, tokens);
  const auto down = of(std::type_identity<ExpertGemm>{}, p.mlp.down, tokens * slots_of(config));
  const auto combine = of(std::type_identity<Combine>{}, p.combine, tokens);
  for (const auto& part : {route, router, group, up, down, combine})
    if (!part) return MoePath::kParts;
  const double parts_us = router->us + group->us + up->us + down->us + combine->us;
  return route->us + experts->us < parts_us ? MoePath::kAsOne : MoePath::kParts;
}

}  // namespace sluice
