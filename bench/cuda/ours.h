// Sluice's kernels as contenders: what dispatch chooses, and each candidate by its name.
#pragma once
#include <memory>
#include <utility>

#include "cuda/commit.h"
#include "cuda/contest.h"
#include "cuda/memory.h"
#include "dispatch/plan.h"

namespace sluice::bench {

// A plan with its own workspace.
template <class Op>
struct Ready {
  Plan<Op> plan;
  Workspace workspace;
};

template <class Op>
Result<std::shared_ptr<const Ready<Op>>> make_ready(Memory& memory, const typename Op::Problem& problem,
                                                    const Policy& policy = {}) {
  auto plan = make_plan<Op>(memory.device(), problem, policy);
  if (!plan.ok()) return plan.status();
  void* data = nullptr;
  const size_t bytes = plan.value().workspace_bytes();
  if (bytes > 0) SLUICE_TRY(memory.bytes(bytes, &data));
  return std::shared_ptr<const Ready<Op>>(
      new Ready<Op>{std::move(plan).value(), {static_cast<std::byte*>(data), bytes}});
}

// Enqueues run i.
using Step = std::function<Status(int64_t i)>;

// What dispatch chooses; args(i) are the tensors of run i.
template <class Op, class MakeArgs>
Result<Step> make_step(Memory& memory, const typename Op::Problem& problem, MakeArgs args,
                       const Policy& policy = {}) {
  auto ready = make_ready<Op>(memory, problem, policy);
  if (!ready.ok()) return ready.status();
  return Step([ready = ready.value(), args, stream = memory.stream()](int64_t i) {
    return ready->plan.run(args(i), ready->workspace, stream);
  });
}

// A way through Sluice's kernels, with dependent launches, as in a recorded layer.
inline Contender contender_of(std::string impl, Step step) {
  return {Who::kSluice, std::move(impl), commit(), true, std::move(step)};
}

// A kernel whose predicted cost is this many times the best one is not measured: its runs would take most of a suite.
constexpr double kFarSlower = 3;

// "sluice", and one contender for each kernel that accepts the problem and is not far slower. None, with a complaint, if no
// kernel accepts it. `args(i)` are the tensors of run i.
template <class Op, class MakeArgs>
Status add_ours(Memory& memory, const typename Op::Problem& problem, MakeArgs args, bool dependent,
                Contest* contest, std::vector<std::string>* complaints) {
  const Stream stream = memory.stream();
  const auto add = [&](Who who, std::string impl, const Policy& policy) -> Status {
    auto ready = make_ready<Op>(memory, problem, policy);
    if (!ready.ok()) return ready.status();
    contest->contenders.push_back(
        {who, std::move(impl), commit(), dependent, [ready = ready.value(), args, stream](int64_t i) {
           return ready->plan.run(args(i), ready->workspace, stream);
         }});
    return {};
  };
  const Device& device = memory.device();
  const auto table = device.catalog().table<Op>();
  const Decision decision = decide<Op>(problem, device.info(), table);
  if (decision.chosen < 0) {
    complaints->push_back(std::string(Op::kName) + " (" + fields_text(problem) +
                          ") left out, no kernel of ours: " + decision.status().message);
    return {};
  }
  SLUICE_TRY(add(Who::kSluice, "sluice", {}));
  const double far_us = kFarSlower * decision.verdicts[static_cast<size_t>(decision.chosen)].cost_us;
  for (size_t row = 0; row < decision.verdicts.size(); ++row) {
    const Verdict& v = decision.verdicts[row];
    const std::string name(v.candidate);
    if (table[row]->parts.empty()) {
      if (v.config >= 0 && v.cost_us <= far_us) SLUICE_TRY(add(Who::kCandidate, name, {.force = name}));
      continue;
    }
    for (const Config& one : v.configs)  // of a composition: each choice of kernels for its parts
      if (one.refusal.accepted() && one.cost_us <= far_us)
        SLUICE_TRY(add(Who::kCandidate, name + ":" + one.name, {.force = name + ":" + one.name}));
  }
  return {};
}

}  // namespace sluice::bench
