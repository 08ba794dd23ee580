#include "nn/moe_path.h"

#include <algorithm>

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
    const auto takes = [&](int64_t tokens) {
      return c->supports(ExpertMlp::at_tokens(problem, tokens), device).accepted();
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
      known.emplace_back(c->name);
      words_for_them.insert(words_for_them.end(), {known.back(), std::string(variant_of(c->name))});
      if (c->name == words[0].name || variant_of(c->name) == words[0].name) found.emplace_back(c->name);
    }
  };
  look(std::type_identity<ExpertGemm>{});
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
  return force_words(kernel)[0].op() == ExpertMlp::kName ? MoePath::kAsOne : MoePath::kParts;
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
  if (phase.path() == MoePath::kAsOne && !can_be_one(config))
    return unsupported("moe: per_expert: wanted a kernel of expert_gemm, found " + phase.kernel +
                       ": expert_mlp has one activation for all experts");
  if (const auto path = phase.path()) {
    SLUICE_TRY(out.plan(*path, phase.last));
    out.steps_ = {{phase.first, *path}};
    return out;
  }
  SLUICE_TRY(out.plan(MoePath::kParts, phase.last));
  out.steps_ = {{phase.first, MoePath::kParts}};
  if (!can_be_one(config)) return out;
  const int64_t last =
      last_count(device, catalog.table<ExpertMlp>(), mlp_problem(config), phase.last, policy);
  if (last < phase.first || (policy.batch_invariant && last < phase.last)) return out;
  if (out.plan(MoePath::kAsOne, last).ok()) out.choose_paths(last);
  const auto as_one = [](const Step& s) { return s.path == MoePath::kAsOne; };
  if (std::none_of(out.steps_.begin(), out.steps_.end(), as_one)) out.forget_as_one();
  return out;
}

Status MoePlans::plan(MoePath path, int64_t last) {
  return try_each_stage(
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
      });
}

void MoePlans::forget_as_one() {
  for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
    if (!stage.runs(config_, MoePath::kParts)) std::get<kAt>(tables_).reset();
  });
  steps_ = {{phase_.first, MoePath::kParts}};
}

std::optional<double> MoePlans::cost_us(MoePath path, int64_t tokens) const {
  double us = 0;
  bool in_turn = false;
  for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
    if (!stage.runs(config_, path) || !of_one_path(stage, config_)) return;
    const int64_t rows = tokens * stage.rows(config_);
    const auto& table = *std::get<kAt>(tables_);
    if constexpr (std::is_same_v<Op, ExpertMlp>) in_turn |= table.at(rows).is_composition();
    us += table.cost_us(rows, device_);
  });
  return in_turn ? std::nullopt : std::optional<double>(us);
}

void MoePlans::choose_paths(int64_t last) {
  if (policy_.batch_invariant) {
    if (one_wins_on_average()) steps_ = {{phase_.first, MoePath::kAsOne}};
    return;
  }
  const auto path_at = [&](int64_t tokens) {
    const std::optional<double> us = tokens <= last ? cost_us(MoePath::kAsOne, tokens) : std::nullopt;
    return us && *us < *cost_us(MoePath::kParts, tokens) ? MoePath::kAsOne : MoePath::kParts;
  };
  steps_.clear();
  const Status never_fails = for_each_change(
      std::min(phase_.last, last + 1), [&](int64_t, int64_t b) { return path_at(b) == steps_.back().path; },
      [&](int64_t tokens) -> Status {
        steps_.push_back({tokens, path_at(tokens)});
        return {};
      },
      phase_.first);
  (void)never_fails;
}

bool MoePlans::one_wins_on_average() const {
  double shares = 0, counts = 0;
  for (int64_t tokens = 1;; tokens = std::min(2 * tokens, phase_.last)) {
    const std::optional<double> us = cost_us(MoePath::kAsOne, tokens);
    if (!us) return false;
    shares += *us / *cost_us(MoePath::kParts, tokens), ++counts;
    if (tokens == phase_.last) break;
  }
  return shares < counts;
}

MoePath MoePlans::at(int64_t tokens) const {
  size_t i = steps_.size() - 1;
  while (i > 0 && steps_[i].first > tokens) --i;
  return steps_[i].path;
}

MoePath moe_path(const MoeConfig& config, int64_t tokens, const DeviceInfo& device, const Catalog& catalog,
                 const Policy& policy) {
  if (!can_be_one(config)) return MoePath::kParts;
  const auto table = catalog.table<ExpertMlp>();
  const Decision own = decide<ExpertMlp>(ExpertMlp::at_tokens(mlp_problem(config), tokens), device, table,
                                         policy_for<ExpertMlp>(policy, table));
  if (own.chosen < 0 || !chosen<ExpertMlp>(own, table)->parts.empty()) return MoePath::kParts;
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
  const PartsCost as_one = cost(MoePath::kAsOne), parts = cost(MoePath::kParts);
  const bool both = as_one.refusal.accepted() && parts.refusal.accepted();
  return both && as_one.us < parts.us ? MoePath::kAsOne : MoePath::kParts;
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
