// A plan stores the result of decide(); running it chooses nothing.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/decide.h"
#include "dispatch/device.h"

namespace sluice {

// Immutable: make it once and run it many times, from any thread (with different streams and workspaces).
template <class Op>
class Plan {
 public:
  // `device` is DeviceInfo::index.
  Plan(const Candidate<Op>* kernel, typename Op::Problem problem, Config config, int device = 0)
      : kernel_(kernel), problem_(problem), config_(std::move(config)), device_(device) {}
  size_t workspace_bytes() const { return config_.workspace_bytes; }
  std::string_view kernel() const { return kernel_->name; }
  const Config& config() const { return config_; }
  // "NAME" or "NAME:CONFIG", in the form of Policy::force.
  std::string choice() const {
    return std::string(kernel_->name) + (config_.name.empty() ? "" : ":" + config_.name);
  }
  double cost_us() const { return config_.cost_us; }
  const typename Op::Problem& problem() const { return problem_; }

  // Checks the tensors against the problem (host data only) and enqueues. kInvalidArgument names the
  // tensor, what was wanted and what was found; in that case nothing is enqueued.
  Status run(const typename Op::Args& args, Workspace workspace, Stream stream) const {
    return run_as(problem_, args, workspace, stream);
  }

 protected:
  Status run_as(const typename Op::Problem& problem, const typename Op::Args& args, Workspace workspace,
                Stream stream) const {
    SLUICE_TRY(check_args<Op>(problem, args, kernel_->backend, kernel_->alignment_bytes));
    if (stream.where != kernel_->backend || stream.native == nullptr)
      return invalid(std::string(Op::kName) + ": stream: wanted a stream of " + text(kernel_->backend) +
                     ", found " + (stream.native ? text(stream.where) : "null"));
    if (stream.native->device != device_)
      return invalid(std::string(Op::kName) + ": stream: wanted a stream of " + text(kernel_->backend) +
                     " device " + std::to_string(device_) +
                     " (the plan's device), found a stream of device " +
                     std::to_string(stream.native->device));
    const size_t need = config_.workspace_bytes;
    if (workspace.bytes < need || (need > 0 && workspace.data == nullptr))
      return invalid(std::string(Op::kName) + ": workspace: wanted " + std::to_string(need) + " bytes for " +
                     std::string(kernel_->name) + ", found " + std::to_string(workspace.bytes));
    return enqueue(*kernel_, problem, config_.launches, args, workspace, stream);
  }

 private:
  template <class>
  friend class PlanTable;
  const Candidate<Op>* kernel_;
  typename Op::Problem problem_;
  Config config_;
  int device_;
};

template <class Op>
const Candidate<Op>* chosen(const Decision& decision, std::span<const Candidate<Op>* const> table) {
  return decision.chosen < 0 ? nullptr : table[static_cast<size_t>(decision.chosen)];
}

// kInvalidArgument: the operation rejects the problem on every backend. kUnsupported: no kernel accepts it. The message gives every reason.
template <class Op>
Result<Plan<Op>> make_plan(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                           const typename Op::Problem& problem, const Policy& policy = {}) {
  const Decision decision = decide<Op>(problem, device, table, policy);
  if (Status status = decision.status(); !status.ok()) {
    status.message = std::string(Op::kName) + " (" + fields_text(problem) + "): " + status.message;
    return status;
  }
  return Plan<Op>(chosen<Op>(decision, table), problem, decision.config(), device.index);
}
template <class Op>
Result<Plan<Op>> make_plan(const Device& device, const typename Op::Problem& problem,
                           const Policy& policy = {}) {
  return make_plan<Op>(device.info(), device.catalog().table<Op>(), problem, policy);
}

// Implements Policy::batch_invariant for all token counts of a problem. All counts must use one kernel, because
// two batch-invariant kernels may give different bits (and one configuration, if configurations of the kernel
// differ in bits). Returns a policy that forces one of the kernels that accept 1, 2, 4, ... and `tokens_last` tokens.
// Costs are divided by the least cost at the same count; the kernel with the lowest average wins. kUnsupported:
// no kernel accepts all these counts.
template <class Op>
Result<Policy> invariant_policy(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                                const typename Op::Problem& problem, int64_t tokens_last,
                                const Policy& policy) {
  if (!policy.batch_invariant || tokens_last <= 0) return policy;
  struct Share {
    std::string force;
    double sum = 0;
    int counts = 0;
  };
  std::vector<Share> shares;
  int counts = 0;
  const auto add = [&](const std::string& force, double share) {
    for (Share& s : shares)
      if (s.force == force) return void((s.sum += share, ++s.counts));
    if (counts == 0) shares.push_back({force, share, 1});
  };
  for (int64_t tokens = 1;; tokens = std::min(2 * tokens, tokens_last), ++counts) {
    const Decision decision = decide<Op>(Op::at_tokens(problem, tokens), device, table, policy);
    if (!decision.contract.accepted()) return policy;  // planning then reports why
    const double least_cost = decision.chosen < 0 ? 1 : decision.choice().cost_us;
    for (size_t i = 0; i < table.size(); ++i) {
      const Verdict& v = decision.verdicts[i];
      const std::string name(v.candidate);
      if (!table[i]->config_decides_bits) {
        if (v.config >= 0) add(name, v.cost_us / least_cost);
        continue;
      }
      for (const Config& one : v.configs)
        if (one.refusal.accepted()) add(name + ":" + one.name, one.cost_us / least_cost);
    }
    if (tokens == tokens_last) break;
  }
  const Share* best = nullptr;
  for (const Share& s : shares)
    if (s.counts == counts + 1 && (!best || s.sum < best->sum)) best = &s;
  if (!best)
    return unsupported(std::string(Op::kName) + " (" + fields_text(problem) +
                       "): batch_invariant: wanted one kernel for 1 to " + std::to_string(tokens_last) +
                       " tokens, found no kernel that supports all of these counts");
  Policy one = policy;
  one.force = best->force;
  return one;
}

// Finds the token counts, from `first` to tokens_max, at which a step function of the token count changes. Examines all counts up to 64, then counts
// that grow by a thirty-second at a time. Calls same(a, b), which returns whether two neighboring examined counts
// agree. If they do not, finds by bisection the first count after a that differs from a, calls change(count), and
// continues from there. Assumes that there is no change between two counts that agree.
template <class Same, class Change>
Status for_each_change(int64_t tokens_max, Same same, Change change, int64_t first = 0) {
  constexpr int64_t kAll = 64, kShare = 32;
  int64_t at = first;
  SLUICE_TRY(change(at));
  while (at < tokens_max) {
    const int64_t next = std::min(tokens_max, at < kAll ? at + 1 : at + at / kShare);
    if (same(at, next)) {
      at = next;
      continue;
    }
    int64_t low = at, high = next;  // `low` agrees with `at`, `high` does not
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (same(at, middle) ? low : high) = middle;
    }
    SLUICE_TRY(change(high));
    at = high;
  }
  return {};
}

// Upper bound of tokens_max, because make() computes the workspace for every single count.
constexpr int64_t kTableTokensMax = int64_t{1} << 24;

inline Status check_bounds(std::string_view op, int64_t tokens_min, int64_t tokens_max) {
  if (tokens_max < 0 || tokens_max > kTableTokensMax)
    return invalid(std::string(op) + ": tokens_max: wanted 0 to " + std::to_string(kTableTokensMax) +
                   ", found " + std::to_string(tokens_max));
  if (tokens_min < 0 || tokens_min > tokens_max)
    return invalid(std::string(op) + ": tokens_min: wanted 0 to " + std::to_string(tokens_max) + ", found " +
                   std::to_string(tokens_min));
  return {};
}

// kInvalidArgument: the plan is for `first` to `last` tokens, not for this count.
inline Status check_count(std::string_view op, int64_t tokens, int64_t first, int64_t last) {
  if (tokens >= first && tokens <= last) return {};
  return invalid(std::string(op) + ": wanted " + std::to_string(first) + " to " + std::to_string(last) +
                 " tokens (the plan's bound), found " + std::to_string(tokens));
}

// The results of decide() for token counts from tokens_min to a maximum, stored as the steps of a step
// function (for_each_change). With Policy::batch_invariant there is one step if the kernel has a single list
// of launches, and another for zero tokens if the kernel does not accept them. Candidates guarantee
// (tests/cuda/cards_test.cc) that a kernel that accepts two counts accepts all counts between them, and that
// a kernel with several configurations never needs less workspace for more tokens. run() looks the plan up at
// run time, so that no compiler (torch.compile) hard-codes the choice for one token count.
template <class Op>
class PlanTable {
 public:
  struct Step {
    int64_t first;  // the plan is used for token counts from here up to the next step
    Plan<Op> plan;  // its problem is for `first` tokens; its workspace covers the whole step
  };

  static Result<PlanTable> make(const Device& device, const typename Op::Problem& problem, int64_t tokens_max,
                                const Policy& policy = {}) {
    return make(device.info(), device.catalog().table<Op>(), problem, tokens_max, policy);
  }
  // Makes the table from data alone, for a device that may be absent. choice_tokens: with Policy::batch_invariant, the kernel is
  // chosen for up to this many tokens, so that tables with other bounds choose the same kernel; 0: tokens_max. unit: every token count,
  // tokens_min and tokens_max are multiples of it, for operations with several rows per token.
  static Result<PlanTable> make(const DeviceInfo& device, std::span<const Candidate<Op>* const> table,
                                const typename Op::Problem& problem, int64_t tokens_max,
                                const Policy& policy = {}, int64_t tokens_min = 0, int64_t choice_tokens = 0,
                                int64_t unit = 1);

  int64_t tokens_max() const { return tokens_max_; }
  const std::vector<Step>& steps() const { return steps_; }
  // Enough for every token count.
  size_t workspace_bytes() const {
    size_t largest = 0;
    for (const Step& s : steps_) largest = std::max(largest, s.plan.workspace_bytes());
    return largest;
  }
  const Plan<Op>& at(int64_t tokens) const {
    size_t i = steps_.size() - 1;
    while (i > 0 && steps_[i].first > tokens) --i;
    return steps_[i].plan;
  }
  // The estimated cost of the configuration that runs for `tokens` tokens.
  double cost_us(int64_t tokens, const DeviceInfo& device) const {
    const auto known = std::lower_bound(
        costs_.begin(), costs_.end(), tokens,
        [](const std::pair<int64_t, double>& one, int64_t count) { return one.first < count; });
    if (known != costs_.end() && known->first == tokens) return known->second;
    const Plan<Op>& plan = at(tokens);
    const std::vector<Config> configs =
        configs_of(*plan.kernel_, Op::at_tokens(plan.problem(), tokens), device);
    for (const Config& one : configs)
      if (one.name == plan.config_.name) return one.cost_us;
    return plan.cost_us();
  }
  Status run(int64_t tokens, const typename Op::Args& args, Workspace workspace, Stream stream) const {
    SLUICE_TRY(check_count(Op::kName, tokens, steps_.front().first, tokens_max_));
    const Plan<Op>& plan = at(tokens);
    return plan.run_as(Op::at_tokens(plan.problem(), tokens), args, workspace, stream);
  }

 private:
  std::vector<Step> steps_;
  std::vector<std::pair<int64_t, double>> costs_;  // at the counts that make() examined, ascending
  int64_t tokens_max_ = 0;
};

template <class Op>
Result<PlanTable<Op>> PlanTable<Op>::make(const DeviceInfo& device,
                                          std::span<const Candidate<Op>* const> table,
                                          const typename Op::Problem& problem, int64_t tokens_max,
                                          const Policy& policy, int64_t tokens_min, int64_t choice_tokens,
                                          int64_t unit) {
  SLUICE_TRY(check_bounds(Op::kName, tokens_min, tokens_max));
  // Rejects a tokens_max that the operation does not allow before evaluating all counts up to it.
  const typename Op::Problem largest = Op::at_tokens(problem, tokens_max);
  if (const Refusal contract = Op::validate(largest); !contract.accepted())
    return invalid(std::string(Op::kName) + " (" + fields_text(largest) + "): " + contract.line());
  PlanTable out;
  out.tokens_max_ = tokens_max;
  const Result<Policy> for_all =
      invariant_policy<Op>(device, table, problem, std::max(tokens_max, choice_tokens), policy);
  if (!for_all.ok()) return for_all.status();
  const auto plan_at = [&](int64_t tokens) {
    const typename Op::Problem at = Op::at_tokens(problem, tokens);
    Result<Plan<Op>> made = make_plan<Op>(device, table, at, for_all.value());
    // Zero tokens produce no output, so any kernel may be used for them.
    return made.ok() || tokens > 0 ? made : make_plan<Op>(device, table, at, policy);
  };
  const auto same = [&](int64_t, int64_t units) {
    const Result<Plan<Op>> made = plan_at(units * unit);
    if (!made.ok()) return false;
    Config& ours = out.steps_.back().plan.config_;
    const Config& theirs = made.value().config_;
    if (made.value().kernel_ != out.steps_.back().plan.kernel_ || theirs.name != ours.name ||
        theirs.launches != ours.launches)
      return false;
    ours.workspace_bytes = std::max(ours.workspace_bytes, theirs.workspace_bytes);
    out.costs_.emplace_back(units * unit, theirs.cost_us);
    return true;
  };
  const auto change = [&](int64_t units) -> Status {
    Result<Plan<Op>> made = plan_at(units * unit);
    if (!made.ok()) return made.status();
    out.costs_.emplace_back(units * unit, made.value().cost_us());
    out.steps_.push_back({units * unit, std::move(made).value()});
    return {};
  };
  SLUICE_TRY(for_each_change(tokens_max / unit, same, change, tokens_min / unit));
  std::sort(out.costs_.begin(), out.costs_.end());
  // The workspace of a candidate with one configuration may rise and fall between the examined counts.
  for (size_t i = 0; i < out.steps_.size(); ++i) {
    Plan<Op>& plan = out.steps_[i].plan;
    if (!plan.kernel_->workspace_bytes) continue;
    const int64_t end = i + 1 < out.steps_.size() ? out.steps_[i + 1].first : tokens_max + 1;
    for (int64_t tokens = out.steps_[i].first; tokens < end; tokens += unit)
      plan.config_.workspace_bytes =
          std::max(plan.config_.workspace_bytes,
                   plan.kernel_->workspace_bytes(Op::at_tokens(problem, tokens), device));
  }
  return out;
}

}  // namespace sluice
