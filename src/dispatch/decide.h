// The one function that decides. make_plan() obeys it and explain prints it, so they cannot differ.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "dispatch/candidate.h"

namespace sluice {

struct Policy {
  std::string force = {};  // the name of the only candidate allowed; refused means an error, not a fallback
  bool batch_invariant = false;  // only kernels whose rows do not depend on each other
};

struct Verdict {
  std::string_view candidate;
  Refusal refusal;
  double cost_us = 0;
  size_t workspace_bytes = 0;
  bool planned = false;       // Candidate::planned
  std::string launches = {};  // Candidate::launches, as decide_in_words() fills it in
};

struct Decision {
  Refusal contract;               // what the operation itself refuses, before any kernel is asked
  std::vector<Verdict> verdicts;  // in table order
  int chosen = -1;                // index into verdicts; -1: nobody accepts
  Status status() const;          // ok, or every reason of everybody
};

// Pure: depends on nothing but its arguments. Least cost wins; ties go to the first in the table.
template <class Op>
Decision decide(const typename Op::Problem& problem, const DeviceInfo& device,
                std::span<const Candidate<Op>* const> table, const Policy& policy = {}) {
  Decision out;
  out.contract = Op::validate(problem);
  bool force_known = policy.force.empty();
  for (const Candidate<Op>* c : table) force_known |= policy.force == c->name;
  out.contract.need(force_known, "policy.force to name a candidate of this operation", policy.force);
  for (const Candidate<Op>* c : table) {
    Verdict v{.candidate = c->name, .refusal = {}, .planned = c->planned};
    // The words are built only for what applies: a PlanTable asks this thousands of times.
    if (c->backend != device.backend) {
      v.refusal.need(false, "its own backend", "the device is " + text(device));
    } else if (out.contract.accepted()) {
      v.refusal = c->supports(problem, device);
    }
    v.refusal.need(!policy.batch_invariant || c->batch_invariant, "policy.batch_invariant",
                   "this kernel is not");
    if (!policy.force.empty() && policy.force != c->name)
      v.refusal.need(false, "not to be excluded", "policy.force=" + policy.force);
    if (v.refusal.accepted() && out.contract.accepted()) {
      v.cost_us = c->cost_us(problem, device);
      v.workspace_bytes = c->workspace_bytes(problem, device);
      const bool better = out.chosen < 0 || v.cost_us < out.verdicts[out.chosen].cost_us;
      if (better) out.chosen = static_cast<int>(out.verdicts.size());
    }
    out.verdicts.push_back(std::move(v));
  }
  return out;
}

// The same with words on what each candidate launches.
template <class Op>
Decision decide_in_words(const typename Op::Problem& problem, const DeviceInfo& device,
                         std::span<const Candidate<Op>* const> table, const Policy& policy = {}) {
  Decision out = decide<Op>(problem, device, table, policy);
  for (size_t i = 0; i < table.size(); ++i)
    if (table[i]->launches && out.contract.accepted() && out.verdicts[i].refusal.accepted())
      out.verdicts[i].launches = table[i]->launches(problem, device);
  return out;
}

}  // namespace sluice
