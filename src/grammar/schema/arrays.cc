#include <algorithm>

#include "grammar/schema/rules.h"

namespace sluice {
namespace {

constexpr size_t kPrefixMax = 2000, kStatesMax = 2000, kContainedMax = 5;
constexpr size_t kValuesMax =
    2000;  // a leaf with more values does not limit the length of an array with unique elements

// `prefix`: the schemas of the array's first elements; `rest`: the schema of all other elements. Null: none.
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

// The "unevaluatedItems" of `schema` if the keyword applies to the element at `index`; null: another part of `schema` evaluates the element.
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

// Collects the "contains" whose matches must be counted. The automaton has one state for each combination of
// counts, so the numbers of counts multiply.
Status ArrayRules::list_contained(const Merged& m, size_t prefix) {
  size_t states = prefix + 1;
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
    if (one.least == 0 && one.most < 0) continue;
    contained_.push_back(one);
    states *= static_cast<size_t>(one.last() + 1);
    if (states > kStatesMax || contained_.size() > kContainedMax)
      return invalid("JSON schema: contains: wanted at most " + std::to_string(kContainedMax) +
                     " at one place, and at most " + std::to_string(kStatesMax) +
                     " combinations of their counts, found more");
  }
  return {};
}

// Whether the array may end at this layer: all counts have reached their minimum.
bool ArrayRules::is_enough(size_t layer) const {
  for (const Contained& one : contained_) {
    const auto counts = static_cast<size_t>(one.last() + 1);
    if (static_cast<int64_t>(layer % counts) < one.least) return false;
    layer /= counts;
  }
  return true;
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
  SLUICE_TRY(list_contained(m, prefix));
  alike_ = prefix == 0 && contained_.empty();
  if (m.repeated && !alike_)
    return invalid(
        "JSON schema: not of uniqueItems: wanted no prefixItems and no contains next to it, found one of "
        "them, "
        "which is not supported");
  // If the array has prefix elements, further elements follow only if the schema asks for them.
  const bool loops = prefix == 0 || open || m.min_items > static_cast<int64_t>(prefix) || !contained_.empty();
  const int32_t rule = program_.add_rule();
  {
    Program::Rule& r = program_.rules[static_cast<size_t>(rule)];
    r.least = static_cast<int32_t>(m.repeated ? std::max<int64_t>(m.min_items, 2) : m.min_items);
    if (m.max_items >= 0) r.most = static_cast<int32_t>(std::min<int64_t>(m.max_items, Program::kNoBound));
  }
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t opened = program_.add_state(rule);
  end_ = program_.add_state(rule);
  program_.states[static_cast<size_t>(end_)].final = true;
  program_.add_call(program_.start(rule), c_.common(leaves.open_array), opened);
  // at[i][layer]: the state before element i. The layer encodes the counts of matches so far. The last i stands for all elements after
  // the prefix. If two elements must be equal, layer 1 is the state after the second one.
  size_t layers = m.repeated ? 2 : 1;
  for (const Contained& one : contained_) layers *= static_cast<size_t>(one.last() + 1);
  std::vector<std::vector<int32_t>> at(prefix + 1);
  for (auto& of_element : at)
    for (size_t layer = 0; layer < layers; ++layer) of_element.push_back(program_.add_state(rule));
  program_.add_call(opened, c_.common(leaves.blanks), at[0][0]);
  program_.add_empty(opened, at[0][0]);
  if (is_enough(0) && !m.repeated) program_.add_call(opened, c_.common(leaves.close_array), end_);
  if (m.repeated) {
    const Schemas wanted = element(m, 0);
    SLUICE_TRY(add_element(m, wanted, at[0][0], at[0][0], false));
    SLUICE_TRY(add_element(m, wanted, at[0][1], at[0][1], true));
    const auto again = program_.add_leaf(std::make_shared<const Leaf>(texts_leaf({"an earlier element"})));
    add_value(m, {again}, Among::kRepeated, at[0][0], at[0][1], true);
    return rule;
  }
  for (size_t i = 0; i < prefix + (loops ? 1 : 0); ++i)
    for (size_t layer = 0; layer < layers; ++layer)
      for (Choice& choice : choices(layer, element(m, i))) {
        // After the prefix, elements that match a "contains" come first until every "contains" has its minimum, so that the array can end.
        if (i == prefix && !choice.progress && !is_enough(layer)) continue;
        SLUICE_TRY(add_element(m, choice.wanted, at[i][layer], at[std::min(i + 1, prefix)][choice.layer],
                               is_enough(choice.layer)));
      }
  return rule;
}

// The choices for an element at this layer. If "contains" has a maximum, an element either matches or must not match; otherwise
// matches beyond the minimum are not counted.
std::vector<ArrayRules::Choice> ArrayRules::choices(size_t layer, const Schemas& any) const {
  std::vector<Choice> out{{any, layer, false}};
  size_t stride = 1;
  for (const Contained& one : contained_) {
    const auto counts = static_cast<size_t>(one.last() + 1);
    const auto count = static_cast<int64_t>(layer / stride % counts);
    std::vector<Choice> next;
    for (const Choice& before : out) {
      next.push_back(before);
      if (one.most >= 0) next.back().wanted.push_back(one.negated);
      if (count == one.last()) continue;
      next.push_back(before);
      next.back().wanted.push_back(one.schema);
      next.back().layer += stride;
      next.back().progress |= count < one.least;
    }
    stride *= counts;
    out = std::move(next);
  }
  return out;
}

// Adds an element that starts in the state `from`. After it the array ends (if `may_end`), or a comma leads to the state `to`.
Status ArrayRules::add_element(const Merged& m, const Schemas& wanted, int32_t from, int32_t to,
                               bool may_end) {
  const auto values = m.distinct ? c_.callees(wanted) : one_of(c_.callee(wanted));
  if (!values.ok()) return values.status();
  const auto& callees = values.value();
  if (m.distinct && alike_ && callees.size() == 1 && is_leaf(callees[0])) {
    const Leaf& leaf = *program_.leaves[static_cast<size_t>(leaf_index(callees[0]))];
    auto& most = program_.rules[static_cast<size_t>(program_.states[static_cast<size_t>(from)].rule)].most;
    if (!leaf.counted() && c_.work_->spend(kValuesMax))
      if (const auto texts = leaf.dfa.texts(kValuesMax))
        most = std::min(most, static_cast<int32_t>(texts->size()));
  }
  const Among among = m.distinct ? Among::kNew : m.repeated ? Among::kNoted : Among::kAny;
  add_value(m, callees, among, from, to, may_end);
  return {};
}

void ArrayRules::add_value(const Merged& m, const std::vector<Callee>& callees, Among among, int32_t from,
                           int32_t to, bool may_end) {
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t behind = program_.add_state(program_.states[static_cast<size_t>(from)].rule);
  for (const Callee value : callees) program_.add_call(from, value, behind, true, among);
  if (may_end) program_.add_call(behind, c_.common(leaves.close_array), end_);
  // close_array may begin with blanks and `comma` may not. If a check may reject the end of the array, a blank after an element would be a
  // dead end, so a comma may then follow blanks, too.
  const bool checked = !m.checks.empty();
  program_.add_call(behind, c_.common(checked ? leaves.comma_in_blanks : leaves.comma), to);
}

}  // namespace sluice
