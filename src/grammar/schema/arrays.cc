#include <algorithm>

#include "grammar/schema/rules.h"

namespace sluice {
namespace {

constexpr size_t kPrefixMax = 2000;

// The schemas of a list's leading elements, and the schema of all others; null: none.
struct Elements {
  const Json *prefix = nullptr, *rest = nullptr;
  const Json* at(size_t index) const {
    return prefix != nullptr && index < prefix->size() ? &(*prefix)[index] : rest;
  }
};
Elements elements_of(const Json& schema) {
  Elements out{member(schema, "prefixItems"), member(schema, "items")};
  if (out.rest != nullptr && out.rest->is_array()) out = {out.rest, member(schema, "additionalItems")};
  if (out.prefix != nullptr && !out.prefix->is_array()) out.prefix = nullptr;
  return out;
}

Result<std::vector<Callee>> one_of(Result<Callee> value) {
  if (!value.ok()) return value.status();
  return std::vector<Callee>{value.value()};
}

}  // namespace

Schemas ArrayRules::element(const Merged& m, size_t index) {
  Schemas out;
  for (const Json* schema : m.arrays) {
    const Elements e = elements_of(*schema);
    if (const Json* one = e.at(index)) out.push_back(one);
  }
  for (const Json* schema : m.arrays)
    if (const Json* unevaluated = unevaluated_by(m, *schema, index)) out.push_back(unevaluated);
  return out;
}

// The "unevaluatedItems" of `schema` if it applies to the element at `index`; null: some part of the schema evaluates the element.
const Json* ArrayRules::unevaluated_by(const Merged& m, const Json& schema, size_t index) {
  const Json* unevaluated = member(schema, "unevaluatedItems");
  if (unevaluated == nullptr) return nullptr;
  const auto& parts = c_.parts_of(&schema);
  Schemas contained;
  for (const Json* other : m.arrays) {
    if (!parts.contains(other)) continue;
    if (elements_of(*other).at(index) != nullptr) return nullptr;
    if (other != &schema && other->contains("unevaluatedItems")) return nullptr;
    if (const Json* contains = member(*other, "contains")) contained.push_back(contains);
  }
  // From 2020-12 on, elements that match "contains" are evaluated.
  if (contained.empty() || c_.document_->draft() < 2020) return unevaluated;
  if (contained.size() == 1 && *unevaluated == Json(false)) return contained[0];
  Json either = {{"anyOf", Json::array({*unevaluated})}};
  for (const Json* one : contained) either["anyOf"].push_back(*one);
  return c_.document_->keep(std::move(either));
}

// Handles "contains": the first schema's is counted by the automaton, further ones become checks.
Result<ArrayRules::Contained> ArrayRules::contained(const Merged& m, size_t prefix, Schemas* checks) {
  Contained out;
  for (const Json* schema : m.arrays) {
    const Json* contains = member(*schema, "contains");
    if (contains == nullptr) continue;
    const auto bound = [&](const char* key, int64_t otherwise) {
      const Json* value = member(*schema, key);
      if (value == nullptr || !value->is_number()) return otherwise;
      return static_cast<int64_t>(std::clamp(value->get<double>(), 0.0, 1e6));
    };
    const Contained one{contains, c_.document_->keep({{"not", *contains}}), bound("minContains", 1),
                        bound("maxContains", -1)};
    const auto layers = static_cast<size_t>(std::max(one.least, one.most) + 1);
    const bool fits = layers * (prefix + 1) <= kPrefixMax;
    if (out.schema == nullptr && fits) {
      out = one;
      continue;
    }
    const Json* check = c_.document_->only(*schema, {"contains", "minContains", "maxContains"});
    SLUICE_TRY(prepare_validation(*c_.document_, *check, c_.work_));
    checks->push_back(check);
  }
  return out;
}

Result<Callee> ArrayRules::rule(const Merged& m) {
  size_t prefix = 0;
  bool open = false;
  for (const Json* schema : m.arrays) {
    const Elements e = elements_of(*schema);
    if (e.prefix != nullptr) prefix = std::max(prefix, e.prefix->size());
    open |= e.rest != nullptr || schema->contains("unevaluatedItems");
  }
  if (prefix > kPrefixMax)
    return invalid("JSON schema: wanted at most " + std::to_string(kPrefixMax) +
                   " elements in prefixItems, found more");
  Schemas checks;
  const auto contained = this->contained(m, prefix, &checks);
  if (!contained.ok()) return contained.status();
  const Contained& contains = contained.value();
  if (m.distinct && contains.least > 1) {
    const auto one = c_.callee({contains.schema});
    if (!one.ok()) return one.status();
    if (is_leaf(one.value())) {
      const auto& texts = program_.leaves[static_cast<size_t>(leaf_index(one.value()))]->texts;
      if (!texts.empty() && std::ssize(texts) < contains.least) return c_.never();
    }
  }
  alike_ = prefix == 0 && contains.schema == nullptr;
  // After prefix elements, others follow only if the schema requires them.
  const bool loops =
      prefix == 0 || open || m.least_items > static_cast<int64_t>(prefix) || contains.schema != nullptr;
  const int32_t rule = program_.add_rule();
  {
    Program::Rule& r = program_.rules[static_cast<size_t>(rule)];
    r.least = static_cast<int32_t>(m.least_items);
    if (m.most_items >= 0) r.most = static_cast<int32_t>(std::min<int64_t>(m.most_items, Program::kNoBound));
  }
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t opened = program_.add_state(rule);
  end_ = program_.add_state(rule);
  program_.states[static_cast<size_t>(end_)].final = true;
  program_.add_call(program_.start(rule), c_.common(leaves.open_array), opened);
  // at[i][c]: before element i, with `c` earlier elements contained. The last i stands for all elements after the prefix.
  std::vector<std::vector<int32_t>> at(prefix + 1);
  for (auto& of_element : at)
    for (int64_t c = 0; c <= contains.last(); ++c) of_element.push_back(program_.add_state(rule));
  program_.add_call(opened, c_.common(leaves.blanks), at[0][0]);
  program_.add_empty(opened, at[0][0]);
  if (contains.least == 0) program_.add_call(opened, c_.common(leaves.close_array), end_);
  for (size_t i = 0; i < prefix + (loops ? 1 : 0); ++i)
    for (int64_t c = 0; c <= contains.last(); ++c) {
      const auto here = static_cast<size_t>(c);
      const auto& next = at[std::min(i + 1, prefix)];
      const Schemas any = element(m, i);
      const auto add = [&](const Json* also, int64_t count) -> Status {
        Schemas wanted = any;
        if (also != nullptr) wanted.push_back(also);
        return add_element(m, wanted, at[i][here], next[static_cast<size_t>(count)], count >= contains.least);
      };
      // After the prefix, the required contained elements come first, so that the array can end.
      const bool may_stay = i < prefix || c >= contains.least;
      if (may_stay) SLUICE_TRY(add(contains.most >= 0 ? contains.negated : nullptr, c));
      if (c < contains.last()) SLUICE_TRY(add(contains.schema, c + 1));
    }
  return checks.empty() ? Result<Callee>(rule) : c_.checked(rule, checks);
}

// Adds an element between two states. After it the array ends, or a comma leads to `to`.
Status ArrayRules::add_element(const Merged& m, const Schemas& wanted, int32_t from, int32_t to,
                               bool may_end) {
  const auto values = m.distinct ? c_.callees(wanted) : one_of(c_.callee(wanted));
  if (!values.ok()) return values.status();
  const auto& callees = values.value();
  const int32_t rule = program_.states[static_cast<size_t>(from)].rule;
  if (m.distinct && alike_ && callees.size() == 1 && is_leaf(callees[0])) {
    const auto& texts = program_.leaves[static_cast<size_t>(leaf_index(callees[0]))]->texts;
    auto& most = program_.rules[static_cast<size_t>(rule)].most;
    if (!texts.empty()) most = std::min(most, static_cast<int32_t>(texts.size()));
  }
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t behind = program_.add_state(rule);
  for (const Callee value : callees) program_.add_call(from, value, behind, true, m.distinct);
  if (may_end) program_.add_call(behind, c_.common(leaves.close_array), end_);
  program_.add_call(behind, c_.common(leaves.comma), to);
  return {};
}

}  // namespace sluice
