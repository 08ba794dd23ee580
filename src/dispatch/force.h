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
  std::string text() const { return std::string(name) + (config.empty() ? "" : ":" + std::string(config)); }
};
// They refer into `force`.
std::vector<ForceWord> force_words(std::string_view force);

// What it asks of an operation whose candidates are called `names`.
struct Force {
  std::optional<ForceWord> own = {};  // the only candidate allowed
  Refusal refusal = {};               // a word that no candidate here matches, or two words
};
Force force_of(std::string_view force, const std::vector<std::string_view>& names);

// The same for a table.
template <class Op>
Force force_of(std::string_view force, std::span<const Candidate<Op>* const> table) {
  if (force.empty()) return {};
  std::vector<std::string_view> names;
  for (const Candidate<Op>* c : table) names.push_back(c->name);
  return force_of(force, names);
}

// The policy with the words alone for which `keeps` answers true.
template <class Keeps>
Policy with_words(const Policy& policy, Keeps keeps) {
  Policy out = policy;
  out.force.clear();
  for (const ForceWord& word : force_words(policy.force))
    if (keeps(word)) out.force += (out.force.empty() ? "" : ",") + word.text();
  return out;
}
// That of one of several operations under one policy.
inline Policy policy_for(const Policy& policy, std::string_view op) {
  return with_words(policy, [&](const ForceWord& word) { return word.op() == op; });
}
// kInvalidArgument: a word of Policy::force that speaks of none of these operations.
Status check_force(const Policy& policy, const std::vector<std::string_view>& ops);

}  // namespace sluice
