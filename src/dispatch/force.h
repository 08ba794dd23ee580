// What Policy::force asks of one operation.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dispatch/candidate.h"

namespace sluice {

// One word of it.
struct ForceWord {
  std::string_view name, config;  // config: empty, any
  std::string_view op() const;    // the middle of the name; empty where it has none
};
// They refer into `force`.
std::vector<ForceWord> force_words(std::string_view force);

// What it asks of the operation `op`, whose candidates are called `names` and whose compositions run `parts`.
struct Force {
  std::optional<ForceWord> own = {};  // the only candidate allowed
  bool parts = false;                 // a part of a composition is forced: only compositions are allowed
  Refusal refusal = {};               // a word that no candidate here matches, or two for one operation
};
Force force_of(std::string_view force, std::string_view op, const std::vector<std::string_view>& names,
               const std::vector<std::string_view>& parts);

// The same for a table.
template <class Op>
Force force_of(std::string_view force, std::span<const Candidate<Op>* const> table) {
  if (force.empty()) return {};
  std::vector<std::string_view> names, parts;
  for (const Candidate<Op>* c : table) {
    names.push_back(c->name);
    parts.insert(parts.end(), c->parts.begin(), c->parts.end());
  }
  return force_of(force, Op::kName, names, parts);
}

// The policy with the words alone that speak of an operation or of parts of its compositions: for one of several operations
// under one policy.
Policy policy_for(const Policy& policy, std::string_view op, const std::vector<std::string_view>& parts);
template <class Op>
Policy policy_for(const Policy& policy, std::span<const Candidate<Op>* const> table) {
  if (policy.force.empty()) return policy;
  std::vector<std::string_view> parts;
  for (const Candidate<Op>* c : table) parts.insert(parts.end(), c->parts.begin(), c->parts.end());
  return policy_for(policy, Op::kName, parts);
}
// kInvalidArgument: a word of Policy::force that speaks of none of these operations.
Status check_force(const Policy& policy, const std::vector<std::string_view>& ops);

}  // namespace sluice
