#include "nn/moe_path.h"

#include <algorithm>

#include "dispatch/composition.h"

namespace sluice {
namespace {

// Calls visit(path, an operation, its problem) for the paths beside the parts, whose experts are an operation of their own.
template <class Visit>
void for_each_other_path(const MoeConfig& config, Visit visit) {
  if (!can_be_one(config)) return;
  visit(MoePath::kGrouped, std::type_identity<GroupedMlp>{}, grouped_problem(config));
  visit(MoePath::kAsOne, std::type_identity<ExpertMlp>{}, mlp_problem(config));
}

// The largest count that a kernel of the operation's own takes; -1: none.
template <class Op>
int64_t last_count(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                   const typename Op::Problem& problem, int64_t tokens_max, const Policy& policy) {
  if (!Op::validate(Op::at_tokens(problem, tokens_max)).accepted()) return -1;
  int64_t last = -1;
  for (const Candidate<Op>* c : table) {
    if (!c->parts.empty() || c->backend != device.backend) continue;
    if (policy.batch_invariant && !c->batch_invariant) continue;
    const auto takes = [&](int64_t tokens) {
      return c->supports(Op::at_tokens(problem, tokens), device).accepted();
    };
    int64_t begin = 0;  // of the counts that agree, up to the next change
    const auto end_at = [&](int64_t end) {
      if (end > begin && takes(begin)) last = std::max(last, end - 1);
    };
    const Status never_fails = for_each_change(
        tokens_max, [&](int64_t a, int64_t b) { return takes(a) == takes(b); },
        [&](int64_t tokens) -> Status { return end_at(tokens), begin = tokens, Status{}; });
    (void)never_fails;
    end_at(tokens_max + 1);
  }
  return last;
}

// A kernel of the experts by its name or the last part of it, as a word of Policy::force.
Result<std::string> kernel_named(const std::string& what, const DeviceInfo& device, const Catalog& catalog) {
  if (what.empty() || what == "auto") return std::string();
  const std::vector<ForceWord> words = force_words(what);
  if (words.size() != 1) return invalid("moe backend: wanted one kernel, found '" + what + "'");
  std::vector<std::string> known, found, words_for_them;
  const auto look = [&]<class Op>(std::type_identity<Op>) {
    for (const Candidate<Op>* c : catalog.table<Op>()) {
      if (c->backend != device.backend) continue;
      if (std::is_same_v<Op, GroupedMlp> && !c->parts.empty()) continue;  // these are the parts
      known.emplace_back(c->name);
      words_for_them.insert(words_for_them.end(), {known.back(), std::string(variant_of(c->name))});
      if (c->name == words[0].name || variant_of(c->name) == words[0].name) found.emplace_back(c->name);
    }
  };
  look(std::type_identity<ExpertGemm>{});
  look(std::type_identity<GroupedMlp>{});
  look(std::type_identity<ExpertMlp>{});
  if (found.size() == 1)
    return found[0] + (words[0].config.empty() ? "" : ":" + std::string(words[0].config));
  std::string names;
  for (const std::string& name : found.empty() ? known : found) names += (names.empty() ? "" : ", ") + name;
  const std::string near = found.empty() ? nearest(words[0].name, words_for_them) : "";
  return invalid("moe backend: wanted " + std::string(found.empty() ? "auto or one of " : "one of ") + names +
                 ", found '" + what + "'" + (near.empty() ? "" : "; did you mean '" + near + "'?"));
}

}  // namespace

std::optional<MoePath> MoePhase::path() const {
  if (kernel.empty()) return {};
  const std::string_view op = force_words(kernel)[0].op();
  return op == ExpertMlp::kName    ? MoePath::kAsOne
         : op == GroupedMlp::kName ? MoePath::kGrouped
                                   : MoePath::kParts;
}

Result<std::vector<MoePhase>> phases_of(const MoeBackend& backend, const DeviceInfo& device,
                                        const Catalog& catalog, int64_t tokens_max, const Policy& policy) {
  if (backend.decode_tokens < 0)
    return invalid("moe backend: decode_tokens: wanted 0 or more, found " +
                   std::to_string(backend.decode_tokens));
  auto decode = kernel_named(backend.decode, device, catalog);
  if (!decode.ok()) return decode.status();
  auto prefill = kernel_named(backend.prefill, device, catalog);
  if (!prefill.ok()) return prefill.status();
  if (decode.value() == prefill.value() || backend.decode_tokens >= tokens_max)
    return std::vector<MoePhase>{{0, tokens_max, decode.value()}};
  if (policy.batch_invariant)
    return invalid(
        "moe backend: wanted one kernel for decode and prefill, as batch_invariant keeps a row's bits, found "
        "'" +
        decode.value() + "' and '" + prefill.value() + "'");
  return std::vector<MoePhase>{{0, backend.decode_tokens, decode.value()},
                               {backend.decode_tokens + 1, tokens_max, prefill.value()}};
}

Policy experts_policy(const Policy& policy, const MoePhase& phase) {
  Policy out = policy;
  if (!phase.kernel.empty()) out.force += (out.force.empty() ? "" : ",") + phase.kernel;
  return out;
}

Policy stage_policy(std::string_view stage, const Policy& policy, const MoePhase& phase) {
  bool experts = false;
  for_each_stage(
      [&](const auto& s, auto) { experts |= s.name == stage && s.kernel == MoeKernel::kOfExperts; });
  return experts ? experts_policy(policy, phase) : policy;
}

Result<MoePlans> MoePlans::make(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                                const MoePhase& phase, const Policy& policy) {
  MoePlans out(device, catalog, config, phase, policy);
  const std::optional<MoePath> named = phase.path();
  if (named && *named != MoePath::kParts && !can_be_one(config))
    return unsupported("moe: per_expert: wanted a kernel of expert_gemm, found " + phase.kernel + ": " +
                       std::string(force_words(phase.kernel)[0].op()) +
                       " has one activation for all experts");
  const MoePath first = named.value_or(MoePath::kParts);
  SLUICE_TRY(out.plan(first, phase.last));
  out.steps_ = {{phase.first, first}};
  if (named) return out;
  out.plan_others(policy);
  out.choose_paths();
  out.forget_unused();
  return out;
}

void MoePlans::plan_others(const Policy& policy) {
  for_each_other_path(config_, [&]<class Op>(MoePath path, std::type_identity<Op>, const auto& problem) {
    const int64_t last = last_count<Op>(device_, catalog_->table<Op>(), problem, phase_.last, policy);
    if (last < phase_.first || (policy.batch_invariant && last < phase_.last)) return;
    const Status none_is_no_error = plan(path, last);
    (void)none_is_no_error;
  });
}

Status MoePlans::plan(MoePath path, int64_t last) {
  SLUICE_TRY(try_each_stage(
      [&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) -> Status {
        auto& table = std::get<kAt>(tables_);
        if (!stage.runs(config_, path) || table) return {};
        const bool experts = stage.kernel == MoeKernel::kOfExperts;
        const Policy policy = experts ? experts_policy(policy_, phase_) : policy_;
        const auto candidates = catalog_->table<Op>();
        const int64_t rows = stage.rows(config_);
        auto made = PlanTable<Op>::make(device_, candidates, stage.problem(config_), last * rows,
                                        policy_for<Op>(policy, candidates), phase_.first * rows);
        if (!made.ok())
          return {made.status().code, "moe " + std::string(stage.name) + ": " + made.status().message};
        table = std::move(made).value();
        return {};
      }));
  last_of_[static_cast<size_t>(path)] = last;
  return {};
}

void MoePlans::forget_unused() {
  for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
    const auto runs = [&](const Step& step) { return stage.runs(config_, step.path); };
    if (std::none_of(steps_.begin(), steps_.end(), runs)) std::get<kAt>(tables_).reset();
  });
}

std::optional<double> MoePlans::cost_us(MoePath path, int64_t tokens) const {
  if (tokens > last_of_[static_cast<size_t>(path)]) return {};
  double us = 0;
  bool in_turn = false;
  for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
    if (!stage.runs(config_, path) || !of_one_path(stage, config_)) return;
    const int64_t rows = tokens * stage.rows(config_);
    const auto& table = *std::get<kAt>(tables_);
    if constexpr (std::is_same_v<Op, ExpertMlp> || std::is_same_v<Op, GroupedMlp>)
      in_turn |= table.at(rows).is_composition();
    us += table.cost_us(rows, device_);
  });
  return in_turn ? std::nullopt : std::optional<double>(us);
}

MoePath MoePlans::cheapest(int64_t tokens) const {
  MoePath best = MoePath::kParts;
  double least = *cost_us(best, tokens);
  for (const MoePath path : kMoePaths)
    if (const std::optional<double> us = cost_us(path, tokens); us && *us < least) best = path, least = *us;
  return best;
}

MoePath MoePlans::cheapest_on_average() const {
  MoePath best = MoePath::kParts;
  double least = 1;  // of the parts' time
  for (const MoePath path : kMoePaths) {
    double shares = 0, counts = 0;
    bool serves = true;
    for (int64_t tokens = 1; serves; tokens = std::min(2 * tokens, phase_.last)) {
      const std::optional<double> us = cost_us(path, tokens);
      serves = us.has_value();
      shares += us.value_or(0) / *cost_us(MoePath::kParts, tokens), ++counts;
      if (tokens == phase_.last) break;
    }
    if (serves && shares / counts < least) best = path, least = shares / counts;
  }
  return best;
}

void MoePlans::choose_paths() {
  if (policy_.batch_invariant) {
    steps_ = {{phase_.first, cheapest_on_average()}};
    return;
  }
  int64_t last = -1;  // count that another path than the parts serves
  for (const MoePath path : kMoePaths)
    if (path != MoePath::kParts) last = std::max(last, last_of_[static_cast<size_t>(path)]);
  if (last < phase_.first) return;
  steps_.clear();
  const Status never_fails = for_each_change(
      std::min(phase_.last, last + 1), [&](int64_t, int64_t b) { return cheapest(b) == steps_.back().path; },
      [&](int64_t tokens) -> Status {
        steps_.push_back({tokens, cheapest(tokens)});
        return {};
      },
      phase_.first);
  (void)never_fails;
}

MoePath MoePlans::at(int64_t tokens) const {
  size_t i = steps_.size() - 1;
  while (i > 0 && steps_[i].first > tokens) --i;
  return steps_[i].path;
}

MoePath moe_path(const MoeConfig& config, int64_t tokens, const DeviceInfo& device, const Catalog& catalog,
                 const Policy& policy) {
  const auto cost = [&](MoePath path) {
    PartsCost out;
    for_each_stage([&]<class Op>(const MoeStage<Op>& stage, auto) {
      if (!stage.runs(config, path) || !of_one_path(stage, config)) return;
      const PartsCost one =
          cost_of_parts(device, catalog, policy,
                        PartOf<Op>{Op::at_tokens(stage.problem(config), tokens * stage.rows(config))});
      out.refusal.append(one.refusal);
      out.us += one.us;
    });
    return out;
  };
  MoePath best = MoePath::kParts;
  PartsCost least = cost(best);
  for_each_other_path(config, [&]<class Op>(MoePath path, std::type_identity<Op>, const auto& problem) {
    if (!least.refusal.accepted()) return;
    const auto table = catalog.table<Op>();
    const Decision own =
        decide<Op>(Op::at_tokens(problem, tokens), device, table, policy_for<Op>(policy, table));
    if (own.chosen < 0 || !chosen<Op>(own, table)->parts.empty()) return;
    PartsCost found = cost(path);
    if (found.refusal.accepted() && found.us < least.us) best = path, least = std::move(found);
  });
  return best;
}

std::vector<StageProblem> moe_problems(const MoeConfig& config, int64_t tokens, MoePath path) {
  std::vector<StageProblem> out;
  for_each_stage([&]<class Op>(const MoeStage<Op>& stage, auto) {
    if (stage.runs(config, path))
      out.push_back({std::string(stage.name),
                     any_problem<Op>(Op::at_tokens(stage.problem(config), tokens * stage.rows(config)))});
  });
  return out;
}

}  // namespace sluice
