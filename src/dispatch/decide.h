// decide() is the only function that chooses kernels. make_plan() runs its choice and explain prints it, so
// the two cannot disagree.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "dispatch/candidate.h"
#include "dispatch/force.h"

namespace sluice {

struct Verdict {
  std::string_view candidate;
  Refusal refusal = {};
  double cost_us = 0;  // cost_us and workspace_bytes belong to the cheapest configuration
  size_t workspace_bytes = 0;
  bool planned = false;              // Candidate::planned
  std::vector<Config> configs = {};  // not empty if accepted
  int config = -1;                   // index of the cheapest configuration
  std::vector<std::string> texts =
      {};  // descriptions of that configuration's launches, set by decide_in_words()
};

struct Decision {
  Refusal
      contract;  // why the operation rejects the problem, or what is wrong with policy.force; then no kernel is chosen
  std::vector<Verdict> verdicts;  // in table order
  int chosen = -1;                // index into verdicts; -1: no candidate accepts the problem
  Status status() const;          // ok, or every reason of every candidate
  // Valid only if chosen >= 0.
  const Verdict& choice() const { return verdicts[static_cast<size_t>(chosen)]; }
  const Config& config() const { return choice().configs[static_cast<size_t>(choice().config)]; }
};

// Returns the common reasons if all configurations give the same ones; otherwise lists each configuration's name and its reasons.
Refusal refusal_of(const std::vector<Config>& configs);

// Depends only on its arguments. Chooses the least cost; among equal costs, the first candidate in the table.
template <class Op>
Decision decide(const typename Op::Problem& problem, const DeviceInfo& device,
                std::span<const Candidate<Op>* const> table, const Policy& policy = {}) {
  Decision out;
  out.contract = Op::validate(problem);
  const Force force = force_of<Op>(policy.force, table);
  out.contract.append(force.refusal);
  for (const Candidate<Op>* c : table) {
    Verdict v{.candidate = c->name, .planned = c->planned};
    // Reasons are formatted only if they apply, because a PlanTable calls this hundreds of times.
    if (c->backend != device.backend) {
      v.refusal.need(false, std::string("a device of backend ") + text(c->backend),
                     "the device is " + text(device));
    } else if (out.contract.accepted()) {
      v.refusal = c->supports(problem, device);
    }
    v.refusal.need(!policy.batch_invariant || c->batch_invariant,
                   "a batch-invariant kernel (policy.batch_invariant=1)",
                   "this kernel is not batch-invariant");
    if (force.own && force.own->name != c->name)
      v.refusal.need(false, "policy.force to allow this kernel", "policy.force=" + policy.force);
    if (v.refusal.accepted() && out.contract.accepted()) {
      v.configs = configs_of(*c, problem, device);
      if (force.own && !force.own->config.empty()) {
        std::erase_if(v.configs, [&](const Config& one) { return one.name != force.own->config; });
        v.refusal.need(!v.configs.empty(),
                       "policy.force to name a configuration that this kernel has for this problem",
                       policy.force);
      }
      v.config = cheapest(v.configs);
      if (v.config < 0) v.refusal.append(refusal_of(v.configs));
    }
    if (v.config >= 0) {
      v.cost_us = v.configs[static_cast<size_t>(v.config)].cost_us;
      v.workspace_bytes = v.configs[static_cast<size_t>(v.config)].workspace_bytes;
      if (out.chosen < 0 || v.cost_us < out.choice().cost_us)
        out.chosen = static_cast<int>(out.verdicts.size());
    }
    out.verdicts.push_back(std::move(v));
  }
  return out;
}

// Like decide(), but also describes the launches of each candidate's cheapest configuration.
template <class Op>
Decision decide_in_words(const typename Op::Problem& problem, const DeviceInfo& device,
                         std::span<const Candidate<Op>* const> table, const Policy& policy = {}) {
  Decision out = decide<Op>(problem, device, table, policy);
  for (size_t i = 0; i < table.size(); ++i) {
    Verdict& v = out.verdicts[i];
    if (v.config < 0 || !table[i]->launch_text) continue;
    for (const KernelLaunch& launch : v.configs[static_cast<size_t>(v.config)].launches)
      v.texts.push_back(table[i]->launch_text(problem, launch));
  }
  return out;
}

}  // namespace sluice
