// A plan is a decision made once. Nothing is chosen after plan().
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/decide.h"
#include "dispatch/device.h"

namespace sluice {

// Immutable; made once, run many times, from any thread (on different streams and workspaces).
template <class Op>
class Plan {
 public:
  Plan(const Candidate<Op>* kernel, typename Op::Problem problem, size_t workspace_bytes)
      : kernel_(kernel), problem_(problem), workspace_bytes_(workspace_bytes) {}
  size_t workspace_bytes() const { return workspace_bytes_; }
  std::string_view kernel() const { return kernel_->name; }
  bool in_turn() const { return kernel_->in_turn; }
  double cost_us(const DeviceInfo& device) const { return kernel_->cost_us(problem_, device); }
  const typename Op::Problem& problem() const { return problem_; }

  // Checks the tensors against the problem (host data only) and enqueues. kInvalidArgument names the tensor,
  // what was wanted and what was found, and enqueues nothing.
  Status run(const typename Op::Args& args, Workspace workspace, Stream stream) const {
    return run_as(problem_, workspace_bytes_, args, workspace, stream);
  }

 protected:
  Status run_as(const typename Op::Problem& problem, size_t need, const typename Op::Args& args,
                Workspace workspace, Stream stream) const {
    SLUICE_TRY(check_args<Op>(problem, args, kernel_->backend, kernel_->alignment_bytes));
    if (stream.where != kernel_->backend || stream.native == nullptr)
      return invalid(std::string(Op::kName) + ": stream: wanted one of " + text(kernel_->backend) +
                     ", found " + (stream.native ? text(stream.where) : "null"));
    if (workspace.bytes < need || (need > 0 && workspace.data == nullptr))
      return invalid(std::string(Op::kName) + ": workspace: wanted " + std::to_string(need) + " bytes for " +
                     std::string(kernel_->name) + ", found " + std::to_string(workspace.bytes));
    return kernel_->enqueue(problem, args, workspace, stream);
  }

 private:
  template <class>
  friend class PlanTable;
  const Candidate<Op>* kernel_;
  typename Op::Problem problem_;
  size_t workspace_bytes_;
};

template <class Op>
const Candidate<Op>* chosen(const Decision& decision, std::span<const Candidate<Op>* const> table) {
  return decision.chosen < 0 ? nullptr : table[static_cast<size_t>(decision.chosen)];
}

// kInvalidArgument if the contract refuses the problem, kUnsupported if no kernel takes it: every reason.
template <class Op>
Result<Plan<Op>> make_plan(const Device& device, const typename Op::Problem& problem,
                           const Policy& policy = {}) {
  const auto table = device.catalog().table<Op>();
  const Decision decision = decide<Op>(problem, device.info(), table, policy);
  if (Status status = decision.status(); !status.ok()) {
    status.message = std::string(Op::kName) + " (" + fields_text(problem) + "): " + status.message;
    return status;
  }
  return Plan<Op>(chosen<Op>(decision, table), problem,
                  decision.verdicts[static_cast<size_t>(decision.chosen)].workspace_bytes);
}

// Policy::batch_invariant for a problem of any number of tokens: one kernel for all counts, because two that each keep a
// row's bits need not have the same ones. Answers the policy that forces it: of the kernels that take 1, 2, 4 ... and
// tokens_max tokens, the one whose cost, over the least cost at a count, is lowest on average. kUnsupported: none does.
template <class Op>
Result<Policy> invariant_policy(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                                const typename Op::Problem& problem, int64_t tokens_max,
                                const Policy& policy) {
  if (!policy.batch_invariant || !policy.force.empty() || tokens_max <= 0) return policy;
  std::vector<double> share(table.size(), 0);
  std::vector<bool> takes_all(table.size(), true);
  for (int64_t tokens = 1;; tokens = std::min(2 * tokens, tokens_max)) {
    const Decision decision = decide<Op>(Op::at_tokens(problem, tokens), device, table, policy);
    if (!decision.contract.accepted()) return policy;  // whose refusal the plan answers
    const double least =
        decision.chosen < 0 ? 0 : decision.verdicts[static_cast<size_t>(decision.chosen)].cost_us;
    for (size_t i = 0; i < table.size(); ++i) {
      takes_all[i] = takes_all[i] && decision.verdicts[i].refusal.accepted();
      if (least > 0) share[i] += decision.verdicts[i].cost_us / least;
    }
    if (tokens == tokens_max) break;
  }
  const Candidate<Op>* best = nullptr;
  double best_share = 0;
  for (size_t i = 0; i < table.size(); ++i)
    if (takes_all[i] && (!best || share[i] < best_share)) best = table[i], best_share = share[i];
  if (!best)
    return unsupported(std::string(Op::kName) + " (" + fields_text(problem) +
                       "): batch_invariant: wanted one kernel for 1 to " + std::to_string(tokens_max) +
                       " tokens, found none that takes them all");
  Policy one = policy;
  one.force = best->name;
  return one;
}

// decide() evaluated at every count from 0 to a maximum, kept as the breakpoints of that step function (one step under
// Policy::batch_invariant, and one for no tokens where its kernel takes none). Per call it is one lookup, inside the
// operation, so that neither a compiler nor a recording can freeze a wrong branch.
template <class Op>
class PlanTable {
 public:
  struct Step {
    int64_t first;  // tokens from which this plan serves, up to the next step's
    Plan<Op> plan;  // its problem is the one at `first`; its workspace covers the whole step
  };

  static Result<PlanTable> make(const Device& device, const typename Op::Problem& problem, int64_t tokens_max,
                                const Policy& policy = {}) {
    return make(device.info(), device.catalog().table<Op>(), problem, tokens_max, policy);
  }
  // The same from data alone, for a device that is not here.
  static Result<PlanTable> make(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                                const typename Op::Problem& problem, int64_t tokens_max,
                                const Policy& policy = {});

  int64_t tokens_max() const { return tokens_max_; }
  const std::vector<Step>& steps() const { return steps_; }
  // Enough for every count.
  size_t workspace_bytes() const {
    size_t most = 0;
    for (const Step& s : steps_) most = s.plan.workspace_bytes() > most ? s.plan.workspace_bytes() : most;
    return most;
  }
  const Plan<Op>& at(int64_t tokens) const {
    size_t i = steps_.size() - 1;
    while (i > 0 && steps_[i].first > tokens) --i;
    return steps_[i].plan;
  }
  // What the model says of the kernel that serves `tokens` tokens.
  double cost_us(int64_t tokens, const DeviceInfo& device) const {
    const Plan<Op>& plan = at(tokens);
    return plan.kernel_->cost_us(Op::at_tokens(plan.problem(), tokens), device);
  }
  Status run(int64_t tokens, const typename Op::Args& args, Workspace workspace, Stream stream) const {
    if (tokens < 0 || tokens > tokens_max_)
      return invalid(std::string(Op::kName) + ": wanted 0 to " + std::to_string(tokens_max_) +
                     " tokens (the plan's bound), found " + std::to_string(tokens));
    const Plan<Op>& plan = at(tokens);
    return plan.run_as(Op::at_tokens(plan.problem(), tokens), plan.workspace_bytes(), args, workspace,
                       stream);
  }

 private:
  std::vector<Step> steps_;
  int64_t tokens_max_ = 0;
};

template <class Op>
Result<PlanTable<Op>> PlanTable<Op>::make(const DeviceInfo& device,
                                          std::span<const Candidate<Op>* const> table,
                                          const typename Op::Problem& problem, int64_t tokens_max,
                                          const Policy& policy) {
  PlanTable out;
  out.tokens_max_ = tokens_max;
  const Result<Policy> for_all = invariant_policy<Op>(device, table, problem, tokens_max, policy);
  if (!for_all.ok()) return for_all.status();
  for (int64_t tokens = 0; tokens <= tokens_max; ++tokens) {
    const typename Op::Problem at = Op::at_tokens(problem, tokens);
    Decision decision = decide<Op>(at, device, table, for_all.value());
    // Without tokens there are no bits that another kernel could change.
    if (tokens == 0 && decision.chosen < 0) decision = decide<Op>(at, device, table, policy);
    if (Status status = decision.status(); !status.ok()) {
      status.message = std::string(Op::kName) + " (" + fields_text(at) + "): " + status.message;
      return status;
    }
    const Candidate<Op>* kernel = chosen<Op>(decision, table);
    const size_t bytes = decision.verdicts[static_cast<size_t>(decision.chosen)].workspace_bytes;
    if (out.steps_.empty() || out.steps_.back().plan.kernel_ != kernel)
      out.steps_.push_back({tokens, Plan<Op>(kernel, at, bytes)});
    Plan<Op>& plan = out.steps_.back().plan;
    plan.workspace_bytes_ = std::max(plan.workspace_bytes_, bytes);
  }
  if (out.steps_.empty()) return invalid(std::string(Op::kName) + ": tokens_max is negative");
  return out;
}

}  // namespace sluice
