// Pieces of a known operation: the operation of one stage, or a fused operation of several stages (graph/runs.h).
#pragma once
#include <algorithm>
#include <array>

#include "dispatch/plan.h"
#include "graph/host_copy.h"
#include "graph/piece.h"
#include "graph/runs.h"

namespace sluice {

// The token counts that pieces are planned for, and whether the policy names their kernels.
struct PieceBounds {
  int64_t first = 0, last = 0, choice = 0;  // choice: see StepPolicy::choice_tokens
  int32_t phase = -1;
  bool required = false;
};

template <class Op>
class PieceOf final : public PieceKind {
 public:
  // `rows`: rows of the operation per token. `sources`: the stage slots that bind a fused operation's slots.
  PieceOf(const typename Op::Problem& problem, int64_t rows, size_t stages, const DeviceInfo& device,
          std::span<const Candidate<Op>* const> candidates, const Policy& policy, const PieceBounds& bounds,
          std::vector<StageSlot> sources = {})
      : problem_(problem),
        rows_(rows),
        device_(device),
        candidates_(candidates),
        policy_(policy),
        sources_(std::move(sources)) {
    stages_ = stages, phase_ = bounds.phase, required_ = bounds.required;
    plan(bounds);
  }
  bool is(const typename Op::Problem& problem, int64_t rows, int32_t phase) const {
    return problem_ == problem && rows_ == rows && phase_ == phase;
  }

  std::string_view op() const override { return Op::kName; }
  double cost_us(int64_t tokens) const override { return table_->cost_us(tokens * rows_, device_); }
  std::string_view kernel(int64_t tokens) const override { return table_->at(tokens * rows_).kernel(); }
  std::string choice(int64_t tokens) const override { return table_->at(tokens * rows_).choice(); }
  bool planned(int64_t tokens) const override {
    return std::any_of(candidates_.begin(), candidates_.end(),
                       [&](const Candidate<Op>* c) { return c->name == kernel(tokens) && c->planned; });
  }
  size_t workspace_bytes() const override { return table_ ? table_->workspace_bytes() : 0; }
  std::unique_ptr<AnyProblem> problem(int64_t tokens) const override { return any_problem<Op>(at(tokens)); }
  const Policy& policy() const override { return policy_; }
  Status run(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
             Stream stream) const override {
    return table_->run(placed.tokens * rows_, args(stages, placed), scratch, stream);
  }
  Result<StageCheck> check(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
                           Device& device, Stream stream) const override;

 private:
  typename Op::Problem at(int64_t tokens) const { return Op::at_tokens(problem_, tokens * rows_); }

  typename Op::Args args(std::span<const Stage> stages, const Placed& placed) const {
    typename Op::Args out;
    size_t i = 0;
    Op::slots(at(placed.tokens), [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      const StageSlot from = sources_.empty() ? StageSlot{0, static_cast<uint8_t>(i)} : sources_[i];
      ++i;
      if (sources_.empty() || spec.used)
        out.*member = placed.tensor(stages[from.stage].slots[from.slot], spec);
    });
    return out;
  }

  // Plans for all token counts; if that fails, for the range of counts that some kernel accepts.
  void plan(const PieceBounds& bounds) {
    const auto make = [&](int64_t first, int64_t last) {
      auto made = PlanTable<Op>::make(device_, candidates_, problem_, last * rows_, policy_, first * rows_,
                                      bounds.choice * rows_, rows_);
      refusal_ = made.status();
      if (!made.ok()) return false;
      table_ = std::move(made).value();
      first_ = first, last_ = last;
      return true;
    };
    if (make(bounds.first, bounds.last)) return;
    const Status of_all = refusal_;
    if (policy_.batch_invariant) return;
    // Keeps the refusal of the whole range, because counts outside the smaller range report it.
    if (const auto [first, last] = counts_taken(bounds); last >= first) (void)make(first, last);
    refusal_ = of_all;
  }

  // The first and the last token count that any candidate accepts.
  std::pair<int64_t, int64_t> counts_taken(const PieceBounds& bounds) const {
    std::pair<int64_t, int64_t> out{0, -1};
    for (const Candidate<Op>* c : candidates_) {
      if (c->backend != device_.backend) continue;
      const auto takes = [&](int64_t tokens) {
        return Op::validate(at(tokens)).accepted() && c->supports(at(tokens), device_).accepted();
      };
      int64_t begin = bounds.first;  // first count of the current range, in which takes() does not change
      const auto end_at = [&](int64_t end) {
        if (end <= begin || !takes(begin)) return;
        out.first = out.second < 0 ? begin : std::min(out.first, begin);
        out.second = std::max(out.second, end - 1);
      };
      const Status never_fails = for_each_change(
          bounds.last, [&](int64_t a, int64_t b) { return takes(a) == takes(b); },
          [&](int64_t tokens) -> Status { return end_at(tokens), begin = tokens, Status{}; }, bounds.first);
      (void)never_fails;
      end_at(bounds.last + 1);
    }
    return out;
  }

  typename Op::Problem problem_;
  int64_t rows_;
  DeviceInfo device_;
  std::span<const Candidate<Op>* const> candidates_;  // they point into a catalog that outlives the step
  Policy policy_;
  std::vector<StageSlot> sources_;
  std::optional<PlanTable<Op>> table_;
};

template <class Op>
Result<StageCheck> PieceOf<Op>::check(std::span<const Stage> stages, const Placed& placed, Workspace scratch,
                                      Device& device, Stream stream) const {
  // Copied before the run, because an output may alias an input.
  const typename Op::Problem problem = at(placed.tokens);
  const typename Op::Args tensors = args(stages, placed);
  Result<HostCopy<Op>> host = HostCopy<Op>::make(device, problem, tensors, stream);
  if (!host.ok()) return host.status();
  Expectations wanted = reference(problem, host.value().args());
  if (Status status = table_->run(placed.tokens * rows_, tensors, scratch, stream); !status.ok())
    return status;
  if (Status status = host.value().fetch(stream); !status.ok()) return status;
  for (Expected& given : expected_given(problem, host.value().args())) wanted.push_back(std::move(given));
  StageCheck result{.stage = {}, .kernel = std::string(kernel(placed.tokens))};
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
    for (const Expected& want : wanted) {
      if (want.slot != spec.name) continue;
      const Comparison c = compare(want, host.value().args().*member);
      if (c.worst_share <= result.worst) continue;
      result.worst = c.worst_share;
      result.detail = c.text;
    }
  });
  return result;
}

}  // namespace sluice
