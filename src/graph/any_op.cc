#include "graph/any_op.h"

#include <algorithm>

#include "dispatch/plan.h"
#include "graph/run_plan.h"

namespace sluice {
namespace {

std::string op_message(std::string_view op, const std::string& message) {
  return std::string(op) + ": " + message;
}

// Fails for names that are no slot of Op, and for names given twice.
template <class Op>
Status check_names(const typename Op::Problem& problem, std::span<const NamedTensor> given) {
  for (size_t i = 0; i < given.size(); ++i) {
    bool known = false;
    Op::slots(problem,
              [&](const SlotSpec& spec, Tensor Op::Args::*) { known |= spec.name == given[i].name; });
    if (!known) {
      std::vector<std::string> names;
      Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*) { names.emplace_back(spec.name); });
      Status status = unknown_name("tensor", given[i].name, names);
      status.message = op_message(Op::kName, status.message);
      return status;
    }
    for (size_t j = 0; j < i; ++j)
      if (given[j].name == given[i].name)
        return invalid(op_message(Op::kName, std::string(given[i].name) + ": given twice"));
  }
  return {};
}

template <class Op>
Status args_by_name(const typename Op::Problem& problem, std::span<const NamedTensor> given,
                    typename Op::Args* args) {
  SLUICE_TRY(check_names<Op>(problem, given));
  Status status;
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
    bool found = false;
    for (const NamedTensor& g : given)
      if (g.name == spec.name) args->*member = g.tensor, found = true;
    if (found || !spec.used || !status.ok()) return;
    status = invalid(op_message(Op::kName, std::string(spec.name) + ": missing: wanted " + text(spec.dtype) +
                                               shape_text(spec.shape.data(), spec.rank)));
  });
  return status;
}

template <class Op>
class ErasedPlan final : public AnyPlan {
 public:
  explicit ErasedPlan(OpPlan<Op> plan) : plan_(std::move(plan)) {}
  std::string_view kernel() const override { return plan_.kernel(); }
  size_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  Status run(std::span<const NamedTensor> given, Workspace workspace, Stream stream) const override {
    typename Op::Args args;
    SLUICE_TRY(args_by_name<Op>(plan_.problem(), given, &args));
    return plan_.run(args, workspace, stream);
  }

 private:
  OpPlan<Op> plan_;
};

template <class Op>
class ErasedTable final : public AnyTable {
 public:
  ErasedTable(PlanTable<Op> table, std::vector<TableStep> steps)
      : table_(std::move(table)), steps_(std::move(steps)) {}
  int64_t tokens_max() const override { return table_.tokens_max(); }
  size_t workspace_bytes() const override { return table_.workspace_bytes(); }
  const std::vector<TableStep>& steps() const override { return steps_; }
  Status run(int64_t tokens, std::span<const NamedTensor> given, Workspace workspace,
             Stream stream) const override {
    typename Op::Args args;
    if (tokens < 0 || tokens > table_.tokens_max()) return table_.run(tokens, args, workspace, stream);
    SLUICE_TRY(args_by_name<Op>(Op::at_tokens(table_.at(tokens).problem(), tokens), given, &args));
    return table_.run(tokens, args, workspace, stream);
  }

 private:
  PlanTable<Op> table_;
  std::vector<TableStep> steps_;
};

// A fused operation for all token counts, computed by its own kernels or stage by stage.
template <class Op>
class ErasedRunTable final : public AnyTable {
 public:
  ErasedRunTable(const typename Op::Problem& problem, Step step, Backend backend, int64_t tokens_min,
                 int64_t tokens_max)
      : problem_(problem),
        step_(std::move(step)),
        backend_(backend),
        tokens_min_(tokens_min),
        tokens_max_(tokens_max) {
    const auto choice = [&](int64_t tokens) { return joined_kernels(step_, tokens, true); };
    const Status never_fails = for_each_change(
        tokens_max_, [&](int64_t a, int64_t b) { return choice(a) == choice(b); },
        [&](int64_t tokens) -> Status { return add(tokens, choice(tokens)), Status{}; }, tokens_min);
    (void)never_fails;
    for (size_t i = 0; i < steps_.size(); ++i) {
      steps_[i].last = i + 1 < steps_.size() ? steps_[i + 1].first - 1 : tokens_max_;
      steps_[i].last_us = step_.cost_us(steps_[i].last);
    }
  }
  int64_t tokens_max() const override { return tokens_max_; }
  size_t workspace_bytes() const override { return step_.workspace_bytes(); }
  const std::vector<TableStep>& steps() const override { return steps_; }
  Status run(int64_t tokens, std::span<const NamedTensor> given, Workspace workspace,
             Stream stream) const override {
    SLUICE_TRY(check_count(Op::kName, tokens, tokens_min_, tokens_max_));
    const typename Op::Problem problem = Op::at_tokens(problem_, tokens);
    typename Op::Args args;
    SLUICE_TRY(args_by_name<Op>(problem, given, &args));
    return run_stages<Op>(step_, problem, args, backend_, workspace, stream);
  }

 private:
  void add(int64_t tokens, const std::string& choice) {
    TableStep step{.first = tokens, .kernel = choice};
    step.workspace_bytes = step_.workspace_bytes(), step.first_us = step_.cost_us(tokens);
    if (const size_t colon = choice.find(':');
        choice.find('+') == std::string::npos && colon != std::string::npos)
      step.kernel = choice.substr(0, colon), step.config = choice.substr(colon + 1);
    for (const PieceProblem& piece : step_.problems(tokens)) step.planned |= piece.planned;
    steps_.push_back(std::move(step));
  }

  typename Op::Problem problem_;
  Step step_;
  Backend backend_;
  int64_t tokens_min_, tokens_max_;
  std::vector<TableStep> steps_;
};

template <class Op>
class ErasedProblem final : public AnyProblem {
 public:
  std::string_view op() const override { return Op::kName; }
  std::string_view summary() const override { return Op::kSummary; }
  std::string text() const override { return fields_text(problem_); }
  std::vector<Field> fields() override {
    std::vector<Field> out;
    for_each_field(problem_, [&](const Field& f) { out.push_back(f); });
    return out;
  }
  Refusal validate() const override { return Op::validate(problem_); }
  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> out;
    Op::slots(problem_, [&](const SlotSpec& spec, Tensor Op::Args::*) { out.push_back(spec); });
    return out;
  }
  int64_t tokens() const override { return Op::tokens_of(problem_); }
  double bytes() const override { return Op::bytes(problem_); }
  double flops() const override { return Op::flops(problem_); }

  Decision decide(const DeviceInfo& device, const Catalog& catalog, const Policy& policy) const override {
    if constexpr (kHasStages<Op>) {
      return decide_run<Op>(problem_, device, catalog, policy).decision;
    } else {
      return decide_in_words<Op>(problem_, device, catalog.table<Op>(), policy);
    }
  }
  Result<std::unique_ptr<AnyPlan>> plan(const Device& device, const Policy& policy) const override {
    Result<OpPlan<Op>> made = plan_op<Op>(device, problem_, policy);
    if (!made.ok()) return made.status();
    return std::unique_ptr<AnyPlan>(std::make_unique<ErasedPlan<Op>>(std::move(made).value()));
  }
  Result<std::unique_ptr<AnyTable>> table(const DeviceInfo& device, const Catalog& catalog,
                                          int64_t tokens_max, const Policy& policy,
                                          int64_t tokens_min) const override {
    if constexpr (kHasStages<Op>) {
      return run_table(device, catalog, tokens_max, policy, tokens_min);
    } else {
      return plan_table(device, catalog, tokens_max, policy, tokens_min);
    }
  }

 private:
  Result<std::unique_ptr<AnyTable>> plan_table(const DeviceInfo& device, const Catalog& catalog,
                                               int64_t tokens_max, const Policy& policy,
                                               int64_t tokens_min) const {
    const auto candidates = catalog.table<Op>();
    Result<PlanTable<Op>> made =
        PlanTable<Op>::make(device, candidates, problem_, tokens_max, policy, tokens_min);
    if (!made.ok()) return made.status();
    const auto& plans = made.value().steps();
    std::vector<TableStep> steps;
    for (size_t i = 0; i < plans.size(); ++i) {
      TableStep step{.first = plans[i].first,
                     .kernel = std::string(plans[i].plan.kernel()),
                     .config = plans[i].plan.config().name};
      step.last = i + 1 < plans.size() ? plans[i + 1].first - 1 : tokens_max;
      step.workspace_bytes = plans[i].plan.workspace_bytes();
      const auto cost_at = [&](int64_t tokens) { return made.value().cost_us(tokens, device); };
      for (const Candidate<Op>* c : candidates)
        if (c->name == step.kernel) step.planned = c->planned;
      step.first_us = cost_at(step.first);
      step.last_us = cost_at(step.last);
      steps.push_back(step);
    }
    return std::unique_ptr<AnyTable>(
        std::make_unique<ErasedTable<Op>>(std::move(made).value(), std::move(steps)));
  }

  Result<std::unique_ptr<AnyTable>> run_table(const DeviceInfo& device, const Catalog& catalog,
                                              int64_t tokens_max, const Policy& policy,
                                              int64_t tokens_min) const {
    SLUICE_TRY(check_bounds(Op::kName, tokens_min, tokens_max));
    const typename Op::Problem largest = Op::at_tokens(problem_, tokens_max);
    if (const Refusal contract = Op::validate(largest); !contract.accepted())
      return invalid(std::string(Op::kName) + " (" + fields_text(largest) + "): " + contract.line());
    auto step = Step::plan(std::string(Op::kName), device, catalog, op_graph<Op>(problem_),
                           std::max<int64_t>(tokens_max, 1),
                           {.policy = policy, .phases = {{.first = tokens_min, .last = tokens_max}}});
    if (!step.ok()) return step.status();
    return std::unique_ptr<AnyTable>(std::make_unique<ErasedRunTable<Op>>(
        problem_, std::move(step).value(), device.backend, tokens_min, tokens_max));
  }

  typename Op::Problem problem_;
};

}  // namespace

Status AnyProblem::set(std::string_view name, std::string_view value) {
  std::vector<std::string> known;
  for (const Field& f : fields()) {
    if (f.name == name) return f.set(value);
    known.emplace_back(f.name);
  }
  return unknown_name("field", name, known);
}

Status AnyProblem::parse(std::string_view line) {
  std::string_view name, value;
  std::vector<std::string_view> given;
  while (next_assignment(&line, &name, &value)) {
    if (std::find(given.begin(), given.end(), name) != given.end())
      return invalid(std::string(name) + ": given twice");
    given.push_back(name);
    SLUICE_TRY(set(name, value));
  }
  return {};
}

std::vector<std::string> op_names() {
  std::vector<std::string> out;
  for_each_op([&]<class Op>() { out.emplace_back(Op::kName); });
  return out;
}

Result<std::unique_ptr<AnyProblem>> make_problem(std::string_view op) {
  std::unique_ptr<AnyProblem> out;
  for_each_op([&]<class Op>() {
    if (Op::kName == op) out = std::make_unique<ErasedProblem<Op>>();
  });
  if (!out) return unknown_name("operation", op, op_names());
  return Result<std::unique_ptr<AnyProblem>>(std::move(out));
}

}  // namespace sluice
