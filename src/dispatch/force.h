// Interprets Policy::force for one operation.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "dispatch/candidate.h"

namespace sluice {

// One word of Policy::force.
struct ForceWord {
  std::string_view name, config;  // empty config: any
  std::string_view op() const;    // the middle of the name; empty if there is none
  std::string text() const { return std::string(name) + (config.empty() ? "" : ":" + std::string(config)); }
};
// Splits `force` into words, which refer into it.
std::vector<ForceWord> force_words(std::string_view force);

// The consequence of `force` for an operation whose candidates are called `names`.
struct Force {
  std::optional<ForceWord> own = {};  // the only candidate allowed
  Refusal refusal = {};               // a word that matches no candidate, or two words
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

// Returns the policy with only the words for which `keeps` returns true.
template <class Keeps>
Policy with_words(const Policy& policy, Keeps keeps) {
  Policy out = policy;
  out.force.clear();
  for (const ForceWord& word : force_words(policy.force))
    if (keeps(word)) out.force += (out.force.empty() ? "" : ",") + word.text();
  return out;
}
// Returns the policy with only the words that apply to one operation.
inline Policy policy_for(const Policy& policy, std::string_view op) {
  return with_words(policy, [&](const ForceWord& word) { return word.op() == op; });
}
// kInvalidArgument: a word of Policy::force names none of these operations.
Status check_force(const Policy& policy, const std::vector<std::string_view>& ops);

}  // namespace sluice
