// Interprets Policy::force for one operation.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dispatch/candidate.h"

namespace sluice {

// A kernel that Policy::force names.
struct ForcedKernel {
  std::string_view name, config;  // empty config: any
  std::string_view op() const;    // the middle part of the name; empty if there is none
  std::string text() const { return std::string(name) + (config.empty() ? "" : ":" + std::string(config)); }
};
// Splits `force` at its commas. The results are views of `force`.
std::vector<ForcedKernel> forced_kernels(std::string_view force);

// What `force` means for an operation whose candidates are called `names`.
struct Force {
  std::optional<ForcedKernel> own = {};  // the only candidate allowed
  Refusal refusal = {};                  // a name that matches no candidate, or two names
};
Force force_of(std::string_view force, const std::vector<std::string_view>& names);

// The same for a table of candidates.
template <class Op>
Force force_of(std::string_view force, std::span<const Candidate<Op>* const> table) {
  if (force.empty()) return {};
  std::vector<std::string_view> names;
  for (const Candidate<Op>* c : table) names.push_back(c->name);
  return force_of(force, names);
}

// Returns the policy that forces only the kernels for which `keeps` returns true.
template <class Keeps>
Policy with_forced(const Policy& policy, Keeps keeps) {
  Policy out = policy;
  out.force.clear();
  for (const ForcedKernel& kernel : forced_kernels(policy.force))
    if (keeps(kernel)) out.force += (out.force.empty() ? "" : ",") + kernel.text();
  return out;
}
// Returns the policy that forces only the kernels of one operation.
inline Policy policy_for(const Policy& policy, std::string_view op) {
  return with_forced(policy, [&](const ForcedKernel& kernel) { return kernel.op() == op; });
}
// kInvalidArgument if Policy::force names a kernel that belongs to none of these operations.
Status check_force(const Policy& policy, const std::vector<std::string_view>& ops);

}  // namespace sluice
