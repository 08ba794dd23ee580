#include "graph/pieces.h"

#include <algorithm>

#include "graph/piece_of.h"

namespace sluice {
namespace {

// Returns the policy with `kernel` appended to Policy::force.
Policy with_kernel(Policy policy, const std::string& kernel) {
  if (!kernel.empty()) policy.force += (policy.force.empty() ? "" : ",") + kernel;
  return policy;
}

bool forces_kernel_of(const Policy& policy, std::string_view op) {
  const auto kernels = forced_kernels(policy.force);
  return std::any_of(kernels.begin(), kernels.end(), [&](const ForcedKernel& k) { return k.op() == op; });
}

}  // namespace

std::vector<std::string_view> ops_of(const Graph& graph) {
  std::vector<std::string_view> out;
  const auto add = [&](std::string_view op) {
    if (std::find(out.begin(), out.end(), op) == out.end()) out.push_back(op);
  };
  for (size_t i = 0; i < graph.stages().size(); ++i) {
    add(graph.stages()[i].op->op());
    for_each_run([&]<class Op>() {
      if (run_at<Op>(graph, i)) add(Op::kName);
    });
  }
  return out;
}

Policy policy_of(const Policy& policy, const Graph& graph) {
  const std::vector<std::string_view> ops = ops_of(graph);
  return with_forced(policy, [&](const ForcedKernel& kernel) {
    return std::find(ops.begin(), ops.end(), kernel.op()) != ops.end();
  });
}

template <class Op>
const PieceKind* Pieces::kind_of(const typename Op::Problem& problem, int64_t rows, size_t stages,
                                 size_t phase, bool experts, std::vector<StageSlot> sources) {
  const StepPhase& of = (*phases_)[phase];
  // Pieces are planned per phase only if a phase may force their kernel.
  PieceBounds bounds{.first = phases_->front().first, .last = phases_->back().last, .phase = -1};
  if (experts && phases_->size() > 1)
    bounds = {.first = of.first, .last = of.last, .phase = static_cast<int32_t>(phase)};
  for (const auto& kind : kinds_)
    if (const auto* same = dynamic_cast<const PieceOf<Op>*>(kind.get());
        same && same->is(problem, rows, bounds.phase))
      return kind.get();
  Policy policy = experts ? with_kernel(policy_, of.kernel) : policy_;
  bounds.choice = choice_tokens_;
  bounds.required = forces_kernel_of(policy, Op::kName);
  kinds_.push_back(std::make_unique<PieceOf<Op>>(problem, rows, stages, *device_, catalog_->table<Op>(),
                                                 policy_for(policy, Op::kName), bounds, std::move(sources)));
  return kinds_.back().get();
}

template <class Op>
void Pieces::add_stage(size_t stage, size_t phase) {
  const Stage& s = graph_->stages()[stage];
  const auto* op = dynamic_cast<const StageOf<Op>*>(s.op.get());
  if (!op) return;
  at_[phase * stages_ + stage].push_back(kind_of<Op>(op->problem(), op->rows(), 1, phase, s.experts, {}));
}

template <class Op>
void Pieces::add_run(size_t stage, size_t phase) {
  if (Op::kName == without_) return;
  auto run = find_run<Op>(*graph_, stage);
  if (!run) return;
  constexpr size_t kCount = kRunStages<Op>;
  bool experts = false;
  for (size_t k = 0; k < kCount; ++k) experts |= graph_->stages()[stage + k].experts;
  const PieceKind* kind = kind_of<Op>(run->problem, 1, kCount, phase, experts, std::move(run->sources));
  at_[phase * stages_ + stage].push_back(kind);
  hidden_[{stage, kind}] = std::move(run->hidden);
  for (size_t k = stage; k < stage + kCount; ++k) {
    reach_[k].first = std::min(reach_[k].first, stage);
    reach_[k].second = std::max(reach_[k].second, stage + kCount);
  }
}

Status Pieces::check_forced() const {
  const std::vector<std::string_view> ops = ops_of(*graph_);
  SLUICE_TRY(check_force(policy_, ops));
  for (const StepPhase& phase : *phases_) SLUICE_TRY(check_force({.force = phase.kernel}, ops));
  return {};
}

// Fails if a forced kernel accepts no token count, or if a kernel forced for a phase does not accept all counts of the phase.
Status Pieces::check_named() const {
  for (size_t phase = 0; phase < phases_->size(); ++phase) {
    const StepPhase& of = (*phases_)[phase];
    const auto kernels = forced_kernels(of.kernel);
    for (size_t stage = 0; stage < stages_; ++stage)
      for (const PieceKind* kind : at(stage, phase)) {
        if (!kind->required()) continue;
        const bool for_phase = !kernels.empty() && kernels[0].op() == kind->op();
        if (for_phase ? kind->serves_all(of.first, of.last) : kind->first() <= kind->last()) continue;
        Status status = kind->refusal();
        if (status.ok())
          status = unsupported("wanted a kernel for " + std::to_string(of.first) + " to " +
                               std::to_string(of.last) + " tokens, found " + kind->policy().force + " for " +
                               std::to_string(kind->first()) + " to " + std::to_string(kind->last()));
        return {status.code, joined_name(*graph_, stage, kind->stages()) + ": " + status.message};
      }
  }
  return {};
}

Result<Pieces> Pieces::make(const DeviceInfo& device, const Catalog& catalog, const Graph& graph,
                            const std::vector<StepPhase>& phases, const StepPolicy& policy) {
  Pieces out;
  out.device_ = &device, out.catalog_ = &catalog, out.graph_ = &graph, out.phases_ = &phases;
  out.policy_ = policy.policy, out.without_ = policy.without, out.choice_tokens_ = policy.choice_tokens;
  out.stages_ = graph.stages().size();
  out.at_.resize(out.stages_ * phases.size());
  out.named_.resize(out.at_.size());
  for (size_t i = 0; i < out.stages_; ++i) out.reach_.emplace_back(i, i + 1);
  for (size_t phase = 0; phase < phases.size(); ++phase)
    for (size_t stage = 0; stage < out.stages_; ++stage) {
      for_each_op([&]<class Op>() {
        if constexpr (!kIsRun<Op>) out.add_stage<Op>(stage, phase);
      });
      for_each_run([&]<class Op>() { out.add_run<Op>(stage, phase); });
      for (const PieceKind* kind : out.at(stage, phase))
        for (size_t k = stage; kind->required() && k < stage + kind->stages(); ++k) {
          Named& named = out.named_[phase * out.stages_ + k];
          if (kind->stages() > 1) named.runs.push_back(kind);
          named.stage |= kind->stages() == 1;
        }
    }
  if (Status status = out.check_forced(); !status.ok()) return status;
  if (Status status = out.check_named(); !status.ok()) return status;
  return out;
}

}  // namespace sluice
