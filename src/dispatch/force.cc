#include "dispatch/force.h"

#include <algorithm>

namespace sluice {

std::string_view ForceWord::op() const {
  const size_t first = name.find('.');
  if (first == std::string_view::npos) return {};
  const size_t second = name.find('.', first + 1);
  return second == std::string_view::npos ? std::string_view() : name.substr(first + 1, second - first - 1);
}

std::vector<ForceWord> force_words(std::string_view force) {
  std::vector<ForceWord> out;
  while (!force.empty()) {
    const size_t end = std::min(force.find(','), force.size());
    const std::string_view word = force.substr(0, end);
    const size_t colon = std::min(word.find(':'), word.size());
    if (!word.empty()) out.push_back({word.substr(0, colon), word.substr(std::min(colon + 1, word.size()))});
    force.remove_prefix(std::min(end + 1, force.size()));
  }
  return out;
}

Force force_of(std::string_view force, const std::vector<std::string_view>& names) {
  Force out;
  const std::vector<ForceWord> words = force_words(force);
  out.refusal.need(force.empty() || !words.empty(), "policy.force to name a candidate", force);
  for (const ForceWord& word : words) {
    const bool own = std::find(names.begin(), names.end(), word.name) != names.end();
    out.refusal.need(own, "policy.force to name a candidate of this operation",
                     word.name.empty() ? force : word.name);
    out.refusal.need(!own || !out.own, "policy.force to name one candidate of an operation", force);
    if (own) out.own = word;
  }
  return out;
}

Status check_force(const Policy& policy, const std::vector<std::string_view>& ops) {
  for (const ForceWord& word : force_words(policy.force)) {
    if (std::find(ops.begin(), ops.end(), word.op()) != ops.end()) continue;
    std::string known;
    for (size_t i = 0; i < ops.size(); ++i)
      if (std::find(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(i), ops[i]) ==
          ops.begin() + static_cast<std::ptrdiff_t>(i))
        known += (known.empty() ? "" : ", ") + std::string(ops[i]);
    return invalid("policy.force: wanted a kernel of one of the operations " + known + ", found '" +
                   std::string(word.name) + "'");
  }
  return {};
}

}  // namespace sluice
