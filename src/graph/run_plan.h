// A fused operation that a caller requests outside a graph: one kernel or stage by stage, whichever is estimated to be faster.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "dispatch/plan.h"
#include "graph/runs.h"
#include "graph/step.h"

namespace sluice {

// The candidate name of stage-by-stage execution in a Decision.
inline constexpr std::string_view kStageByStage = "stage by stage";

// Whether the stages of the operation are known, so that it can run stage by stage.
template <class Op>
concept kHasStages = kIsRun<Op> && !requires {
  RunOf<Op>::kKernelsOnly;
};

// "A+B": the kernels of a step's pieces, optionally with their configurations.
std::string joined_kernels(const Step& step, int64_t tokens, bool with_configs);

// The verdicts of decide() on the fused kernels, then the verdict on the cheapest stage-by-stage execution. If
// Policy::force names a fused kernel, only that kernel is accepted; if it names a stage's kernel, only
// stage-by-stage execution is accepted.
struct RunDecision {
  Decision decision;
  std::shared_ptr<const Step> stages = {};  // null if some stage has no kernel
  // Whether the last verdict, stage by stage, was chosen.
  bool by_stages() const {
    return decision.chosen >= 0 && decision.chosen + 1 == std::ssize(decision.verdicts);
  }
};
// `whole`: the decision on the fused kernels, made with those kernels of Policy::force that are fused kernels of this operation.
RunDecision with_stages(Decision whole, std::string_view op, Graph graph, int64_t tokens,
                        const DeviceInfo& device, const Catalog& catalog, const Policy& policy);

template <class Op>
RunDecision decide_run(const typename Op::Problem& problem, const DeviceInfo& device, const Catalog& catalog,
                       const Policy& policy = {}) {
  Decision whole = decide_in_words<Op>(problem, device, catalog.table<Op>(), policy_for(policy, Op::kName));
  if (!whole.contract.accepted()) return {std::move(whole)};
  return with_stages(std::move(whole), Op::kName, op_graph<Op>(problem), Op::tokens_of(problem), device,
                     catalog, policy);
}

// Enqueues the stages of op_graph(), planned as `stages`, on the operation's own tensors. Errors as in Plan::run.
template <class Op>
Status run_stages(const Step& stages, const typename Op::Problem& problem, const typename Op::Args& args,
                  Backend where, Workspace workspace, Stream stream) {
  constexpr size_t kSlotsMax = 32;
  SLUICE_TRY(check_args<Op>(problem, args, where));
  std::array<Tensor, kSlotsMax> list;
  size_t count = 0;
  Op::slots(problem, [&](const SlotSpec&, Tensor Op::Args::*member) { list[count++] = args.*member; });
  return stages.run(Op::tokens_of(problem), {.call = std::span(list).first(count), .held = {}}, workspace,
                    stream);
}

// Immutable, like a Plan.
template <class Op>
class RunPlan {
 public:
  static Result<RunPlan> make(const DeviceInfo& device, const Catalog& catalog,
                              const typename Op::Problem& problem, const Policy& policy = {}) {
    RunDecision made = decide_run<Op>(problem, device, catalog, policy);
    if (Status status = made.decision.status(); !status.ok()) {
      status.message = std::string(Op::kName) + " (" + fields_text(problem) + "): " + status.message;
      return status;
    }
    RunPlan out(problem, device.backend);
    if (made.by_stages()) {
      out.take(std::move(made.stages));
    } else {
      out.whole_.emplace(chosen<Op>(made.decision, catalog.table<Op>()), problem, made.decision.config(),
                         device.index);
      out.kernel_ = out.whole_->kernel();
    }
    return out;
  }
  static Result<RunPlan> make(const Device& device, const typename Op::Problem& problem,
                              const Policy& policy = {}) {
    return make(device.info(), device.catalog(), problem, policy);
  }
  // Plans stage by stage even if a fused kernel is estimated to be faster.
  static Result<RunPlan> stage_by_stage(const DeviceInfo& device, const Catalog& catalog,
                                        const typename Op::Problem& problem) {
    RunDecision made = decide_run<Op>(problem, device, catalog);
    if (!made.stages)
      return unsupported(std::string(Op::kName) + " (" + fields_text(problem) + "): " +
                         (made.decision.contract.accepted() ? made.decision.verdicts.back().refusal.line()
                                                            : made.decision.contract.line()));
    RunPlan out(problem, device.backend);
    out.take(std::move(made.stages));
    return out;
  }

  const typename Op::Problem& problem() const { return problem_; }
  // "NAME" of the fused kernel, or "A+B" of the kernels of its stages.
  const std::string& kernel() const { return kernel_; }
  bool by_stages() const { return !whole_; }
  double cost_us() const { return whole_ ? whole_->cost_us() : stages_->cost_us(Op::tokens_of(problem_)); }
  size_t workspace_bytes() const { return whole_ ? whole_->workspace_bytes() : stages_->workspace_bytes(); }
  // Like Plan::run.
  Status run(const typename Op::Args& args, Workspace workspace, Stream stream) const {
    if (whole_) return whole_->run(args, workspace, stream);
    return run_stages<Op>(*stages_, problem_, args, backend_, workspace, stream);
  }

 private:
  RunPlan(const typename Op::Problem& problem, Backend backend) : problem_(problem), backend_(backend) {}
  void take(std::shared_ptr<const Step> stages) {
    stages_ = std::move(stages);
    kernel_ = joined_kernels(*stages_, Op::tokens_of(problem_), false);
  }

  typename Op::Problem problem_;
  Backend backend_;
  std::string kernel_;
  std::optional<Plan<Op>> whole_;
  std::shared_ptr<const Step> stages_;
};

// Plans any operation.
template <class Op>
auto plan_op(const DeviceInfo& device, const Catalog& catalog, const typename Op::Problem& problem,
             const Policy& policy = {}) {
  if constexpr (kHasStages<Op>) {
    return RunPlan<Op>::make(device, catalog, problem, policy);
  } else {
    return make_plan<Op>(device, catalog.table<Op>(), problem, policy);
  }
}
template <class Op>
auto plan_op(const Device& device, const typename Op::Problem& problem, const Policy& policy = {}) {
  return plan_op<Op>(device.info(), device.catalog(), problem, policy);
}
template <class Op>
using OpPlan = std::conditional_t<kHasStages<Op>, RunPlan<Op>, Plan<Op>>;

}  // namespace sluice
