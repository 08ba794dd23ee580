#include <algorithm>

#include "grammar/schema_rules.h"

namespace sluice {
namespace {

constexpr size_t kPrefixMax = 2000;

const Json* get(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found != schema.end() ? &*found : nullptr;
}

// The elements that a schema lists one by one, and the schema of all others; null: it says nothing.
struct Elements {
  const Json *prefix = nullptr, *rest = nullptr;
};
Elements elements_of(const Json& schema) {
  Elements out{get(schema, "prefixItems"), get(schema, "items")};
  if (out.rest != nullptr && out.rest->is_array()) out = {out.rest, get(schema, "additionalItems")};
  if (out.prefix != nullptr && !out.prefix->is_array()) out.prefix = nullptr;
  if (out.rest == nullptr) out.rest = get(schema, "unevaluatedItems");
  return out;
}

Result<std::vector<Callee>> one_of(Result<Callee> value) {
  if (!value.ok()) return value.status();
  return std::vector<Callee>{value.value()};
}

}  // namespace

Schemas ArrayRules::element(const Merged& m, size_t index) const {
  Schemas out;
  for (const Json* schema : m.arrays) {
    const Elements e = elements_of(*schema);
    const Json* one = e.prefix != nullptr && index < e.prefix->size() ? &(*e.prefix)[index] : e.rest;
    if (one != nullptr) out.push_back(one);
  }
  return out;
}

Result<Callee> ArrayRules::rule(const Merged& m) {
  size_t prefix = 0;
  bool open = false;
  Schemas checks, contained;
  int64_t containing = 0;
  for (const Json* schema : m.arrays) {
    const Elements e = elements_of(*schema);
    if (e.prefix != nullptr) prefix = std::max(prefix, e.prefix->size());
    open |= e.rest != nullptr;
    const Json *contains = get(*schema, "contains"), *least = get(*schema, "minContains");
    if (contains == nullptr) continue;
    const int64_t wanted =
        least != nullptr && least->is_number() ? static_cast<int64_t>(least->get<double>()) : 1;
    if (wanted > 0 && contained.empty()) {
      contained.push_back(contains);
      containing = wanted;
    }
    checks.push_back(schema);
  }
  if (prefix > kPrefixMax || containing > static_cast<int64_t>(kPrefixMax))
    return invalid("JSON schema: wanted at most " + std::to_string(kPrefixMax) +
                   " elements that are listed one by one, found more");
  // After elements that are listed one by one there are others only where the schema asks for them.
  const bool loops = prefix == 0 || open || m.least_items > static_cast<int64_t>(prefix);
  const int32_t rule = program_.add_rule();
  {
    Program::Rule& r = program_.rules[static_cast<size_t>(rule)];
    r.least = static_cast<int32_t>(m.least_items);
    if (m.most_items >= 0) r.most = static_cast<int32_t>(std::min<int64_t>(m.most_items, Program::kNoBound));
  }
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t end = program_.add_state(rule), opened = program_.add_state(rule),
                first = program_.add_state(rule);
  program_.states[static_cast<size_t>(end)].final = true;
  program_.add_call(program_.start(rule), c_.common(leaves.open_array), opened);
  program_.add_call(opened, c_.common(leaves.blanks), first);
  program_.add_empty(opened, first);
  if (containing == 0) program_.add_call(opened, c_.common(leaves.close_array), end);
  // One element behind the other: those of the prefix, those that must contain something, and then any number of others.
  const size_t single = std::max(prefix, static_cast<size_t>(prefix == 0 ? containing : 0));
  int32_t at = first;
  for (size_t i = 0; i <= single; ++i) {
    if (i == single && !loops) break;
    Schemas wanted = element(m, i < prefix ? i : std::max(i, prefix));
    if (prefix == 0 && static_cast<int64_t>(i) < containing)
      wanted.insert(wanted.end(), contained.begin(), contained.end());
    auto values = m.distinct ? c_.callees(wanted) : one_of(c_.callee(wanted));
    if (!values.ok()) return values.status();
    const auto& callees = values.value();
    if (m.distinct && single == 0 && callees.size() == 1 && is_leaf(callees[0])) {
      const auto& texts = program_.leaves[static_cast<size_t>(leaf_index(callees[0]))]->texts;
      auto& most = program_.rules[static_cast<size_t>(rule)].most;
      if (!texts.empty()) most = std::min(most, static_cast<int32_t>(texts.size()));
    }
    const int32_t behind = program_.add_state(rule);
    for (const Callee value : callees) program_.add_call(at, value, behind, true, m.distinct);
    if (static_cast<int64_t>(i) + 1 >= containing || prefix > 0)
      program_.add_call(behind, c_.common(leaves.close_array), end);
    const int32_t next = i == single ? at : program_.add_state(rule);
    if (i == single) {
      // Back to where the next element begins, behind a comma.
      const int32_t again = single == 0 ? program_.add_state(rule) : at;
      for (const Callee value : callees)
        if (single == 0) program_.add_call(again, value, behind, true, m.distinct);
      program_.add_call(behind, c_.common(leaves.comma), again);
    } else {
      program_.add_call(behind, c_.common(leaves.comma), next);
      at = next;
    }
  }
  if (checks.empty() || (prefix == 0 && checks.size() == 1 && get(*checks[0], "maxContains") == nullptr))
    return rule;
  for (const Json* schema : checks) SLUICE_TRY(prepare_validation(*c_.document_, *schema, c_.work_));
  return c_.checked(rule, checks);
}

}  // namespace sluice
