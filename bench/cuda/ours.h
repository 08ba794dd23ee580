// Sluice's kernels as contenders: the choice of dispatch, and each candidate by name.
#pragma once
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/commit.h"
#include "cuda/contest.h"
#include "cuda/memory.h"
#include "graph/run_plan.h"

namespace sluice::bench {

// A plan with its own workspace.
template <class Op>
struct Ready {
  OpPlan<Op> plan;
  Workspace workspace;
};

template <class Op>
Result<std::shared_ptr<const Ready<Op>>> make_ready(Memory& memory, const typename Op::Problem& problem,
                                                    const Policy& policy = {}) {
  auto plan = plan_op<Op>(memory.device(), problem, policy);
  if (!plan.ok()) return plan.status();
  void* data = nullptr;
  const size_t bytes = plan.value().workspace_bytes();
  if (bytes > 0) SLUICE_TRY(memory.bytes(bytes, &data));
  return std::shared_ptr<const Ready<Op>>(
      new Ready<Op>{std::move(plan).value(), {static_cast<std::byte*>(data), bytes}});
}

// Enqueues run i.
using Step = std::function<Status(int64_t i)>;

// The choice of dispatch; args(i) are the tensors of run i.
template <class Op, class MakeArgs>
Result<Step> make_step(Memory& memory, const typename Op::Problem& problem, MakeArgs args,
                       const Policy& policy = {}) {
  auto ready = make_ready<Op>(memory, problem, policy);
  if (!ready.ok()) return ready.status();
  return Step([ready = ready.value(), args, stream = memory.stream()](int64_t i) {
    return ready->plan.run(args(i), ready->workspace, stream);
  });
}

// One combination of Sluice's kernels, with dependent launches, as in a captured layer.
inline Contender contender_of(std::string impl, Step step) {
  return {Who::kSluice, std::move(impl), commit(), true, std::move(step)};
}

// Kernels are measured up to this many times the best predicted cost; slower ones would take most of a suite's time.
constexpr double kFarSlower = 3;

// A combination of Sluice's kernels: its name in rows, and the policy that forces it.
struct ForcedWay {
  std::string name;
  Policy policy;
};

// Values of Policy::force for a fused operation: every combination of unfused kernels, and every kernel that computes several of its
// stages.
template <class Op>
std::vector<std::string> words_of_stages(const Catalog& catalog, const typename Op::Problem& problem) {
  std::vector<std::string> out = {""};
  const Graph graph = op_graph<Op>(problem);
  const std::vector<std::string_view> ops = ops_of(graph);
  std::vector<std::string> of_some;
  for_each_op([&]<class Part>() {
    if constexpr (!std::is_same_v<Part, Op>) {
      if (std::find(ops.begin(), ops.end(), Part::kName) == ops.end()) return;
      std::vector<std::string> more;
      for (const Candidate<Part>* c : catalog.table<Part>()) {
        if (kIsRun<Part>) of_some.emplace_back(c->name);
        for (const std::string& before : out)
          if (!kIsRun<Part>) more.push_back((before.empty() ? "" : before + ",") + std::string(c->name));
      }
      if (!kIsRun<Part>) out = std::move(more);
    }
  });
  out.insert(out.end(), of_some.begin(), of_some.end());
  return out;
}

// The combinations that cost at most `ratio` times the choice of dispatch. With by_config each configuration of a kernel counts
// separately.
template <class Op>
std::vector<ForcedWay> ways_near(const Device& device, const typename Op::Problem& problem, double ratio,
                                 bool by_config) {
  std::vector<ForcedWay> out;
  const auto best = plan_op<Op>(device, problem);
  if (!best.ok()) return out;
  const double max_us = ratio * best.value().cost_us();
  const Decision whole = decide<Op>(problem, device.info(), device.catalog().table<Op>());
  for (const Verdict& v : whole.verdicts) {
    const std::string name(v.candidate);
    if (!by_config && v.config >= 0 && v.cost_us <= max_us) out.push_back({name, {.force = name}});
    for (const Config& one : v.configs) {
      if (!by_config || !one.refusal.accepted() || one.cost_us > max_us) continue;
      const std::string word = name + (one.name.empty() ? "" : ":" + one.name);
      out.push_back({word, {.force = word}});
    }
  }
  if constexpr (kHasStages<Op>) {
    std::set<std::string> names;
    for (const std::string& words : words_of_stages<Op>(device.catalog(), problem)) {
      const auto plan = plan_op<Op>(device, problem, {.force = words});
      if (plan.ok() && plan.value().by_stages() && plan.value().cost_us() <= max_us &&
          names.insert(plan.value().kernel()).second)
        out.push_back({plan.value().kernel(), {.force = words}});
    }
  }
  return out;
}

// Adds the contender "sluice", and one for each combination that is not far slower (by_config: see ways_near()). If no kernel accepts
// the problem, adds a complaint instead. `args(i)` are the tensors of run i.
template <class Op, class MakeArgs>
Status add_ours(Memory& memory, const typename Op::Problem& problem, MakeArgs args, bool dependent,
                Contest* contest, std::vector<std::string>* complaints, bool by_config = false) {
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
  if (const auto plan = plan_op<Op>(memory.device(), problem); !plan.ok()) {
    complaints->push_back(std::string(Op::kName) + " (" + fields_text(problem) +
                          ") skipped, Sluice has no kernel: " + plan.status().message);
    return {};
  }
  SLUICE_TRY(add(Who::kSluice, "sluice", {}));
  for (const ForcedWay& way : ways_near<Op>(memory.device(), problem, kFarSlower, by_config))
    SLUICE_TRY(add(Who::kCandidate, way.name, way.policy));
  return {};
}

}  // namespace sluice::bench
