// Alternatives of schemas: "anyOf", "oneOf", "not" and "if".
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "grammar/schema/merge.h"

namespace sluice {
Status SchemaMerger::choose(const ChoiceKey& key, std::vector<Alternative> alternatives, Merged* m,
                            Schemas* todo, const Decisions& decisions) {
  if (const auto made = decisions.find(key); made != decisions.end()) {
    todo->insert(todo->end(), made->second.schemas.rbegin(), made->second.schemas.rend());
    for (const Json* schema : made->second.checks) SLUICE_TRY(check(*schema, m));
    return {};
  }
  if (alternatives.empty()) m->never = true;
  if (alternatives.size() == 1) {
    todo->insert(todo->end(), alternatives[0].schemas.rbegin(), alternatives[0].schemas.rend());
    for (const Json* schema : alternatives[0].checks) SLUICE_TRY(check(*schema, m));
    return {};
  }
  if (!m->pending) m->pending.emplace(key, std::move(alternatives));
  return {};
}

Status SchemaMerger::check(const Json& schema, Merged* m) {
  SLUICE_TRY(prepare_validation(*document_, schema, work_));
  if (std::find(m->checks.begin(), m->checks.end(), &schema) == m->checks.end()) m->checks.push_back(&schema);
  return {};
}

Status SchemaMerger::add_choices(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions,
                                 int depth) {
  if (const Json* all = member(s, "allOf")) {
    if (!all->is_array()) return wrong_keyword("allOf", "an array of schemas", *all);
    for (auto it = all->rbegin(); it != all->rend(); ++it) todo->push_back(&*it);
  }
  if (const Json* any = member(s, "anyOf")) {
    if (!any->is_array()) return wrong_keyword("anyOf", "an array of schemas", *any);
    std::vector<Alternative> alternatives;
    for (const Json& one : *any) alternatives.push_back({{&one}});
    SLUICE_TRY(choose({&s, "anyOf"}, std::move(alternatives), m, todo, decisions));
  }
  if (s.contains("oneOf")) SLUICE_TRY(add_one_of(s, m, todo, decisions, depth));
  if (s.contains("not")) SLUICE_TRY(add_not(s, m, todo, decisions, depth));
  if (s.contains("if") && (s.contains("then") || s.contains("else")))
    SLUICE_TRY(add_condition(s, m, todo, decisions, depth));
  return add_dependencies(s, m, todo, decisions);
}

const Json* SchemaMerger::beside(const Json& s) {
  auto& out = besides_[&s];
  if (out == nullptr) {
    Json some = Json::object();
    for (const char* key : {"type", "required", "properties"})
      if (const Json* value = member(s, key)) some[key] = *value;
    out = document_->keep(std::move(some));
  }
  return out;
}

const Json* SchemaMerger::of_types(uint8_t types) {
  return document_->keep_once(types == kAnyType ? Json::object() : Json{{"type", type_names(types)}});
}

const SchemaMerger::Nots& SchemaMerger::nots_of(const Json& schema) {
  const auto [found, is_new] = nots_.try_emplace(&schema);
  if (is_new) {
    Negation all = negated(schema, 0);
    found->second.untold = all.untold;
    if (all.untold != 0) found->second.rest = of_types(all.untold);
    // Equal schemas share one negation, so that negating a schema that contains itself ends.
    for (Json& one : all.schemas) found->second.schemas.push_back(document_->keep_once(std::move(one)));
  }
  return found->second;
}

namespace {

// Whether a negation looks at single elements of an array.
bool counts_elements(const Json& negation) {
  if (!negation.is_object()) return false;
  for (const char* key : {"contains", "prefixItems", "not"})
    if (negation.contains(key) && negation.contains("type") && negation["type"] == "array") return true;
  for (const char* key : {"allOf", "properties"})
    if (const Json* parts = member(negation, key); parts && std::ranges::any_of(*parts, counts_elements))
      return true;
  return false;
}

}  // namespace

SchemaMerger::WaysNot SchemaMerger::ways_not(const Json& schema, const Schemas& beside) {
  const Nots& all = nots_of(schema);
  WaysNot out;
  const auto add = [&](bool counting) {
    for (const Json* one : all.schemas) {
      if (counts_elements(*one) != counting) continue;
      Schemas with = beside;
      with.push_back(one);
      if (!impossible(with, 1)) out.schemas.push_back(one);
    }
  };
  add(false);
  const bool counts = std::ranges::any_of(all.schemas, [](auto* one) { return counts_elements(*one); });
  const bool skips = counts && mode_ != Negations::kCounted && !out.schemas.empty();
  if (!skips) add(true);
  const uint8_t skipped = skips ? kArray | kObject : 0;
  auto types = static_cast<uint8_t>((all.untold | skipped) & types_that_fail(schema, 0));
  has_simpler_form_ |= counts || types != 0;
  if (types == 0 || (mode_ == Negations::kNarrow && !out.schemas.empty())) return out;
  Schemas with = beside;
  with.push_back(of_types(types));
  types &= possible_types(with, 1);
  if (types != 0) out.rest = of_types(types), out.rest_types = types;
  return out;
}

// Adds "oneOf": exactly one alternative holds. If no combination of schemas expresses this, the value is checked at its end.
Status SchemaMerger::add_one_of(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions,
                                int depth) {
  const Json& list = s.at("oneOf");
  if (!list.is_array()) return wrong_keyword("oneOf", "an array of schemas", list);
  if (depth >
      0) {  // called by impossible(), which must be fast, so alternatives are not tested against each other
    std::vector<Alternative> some;
    for (const Json& one : list) some.push_back({{&one}});
    return choose({&s, "oneOf"}, std::move(some), m, todo, decisions);
  }
  // Of a type that two alternatives never restrict, no value holds for exactly one.
  uint8_t once = 0, twice = 0;
  for (const Json& one : list) {
    const auto always = static_cast<uint8_t>(kAnyType & ~types_that_fail(one, 0));
    twice |= once & always;
    once |= always;
  }
  if (twice != 0) {
    m->typed = true;
    m->types &= static_cast<uint8_t>(~twice);
  }
  auto found = one_ofs_.find(&s);
  if (found == one_ofs_.end()) {
    std::vector<Alternative> alternatives;
    for (size_t i = 0; i < list.size(); ++i) add_alternatives(s, i, &alternatives);
    found = one_ofs_.emplace(&s, std::move(alternatives)).first;
  }
  return choose({&s, "oneOf"}, found->second, m, todo, decisions);
}

// The constants that a property of the schema's objects may have; empty: unknown.
std::vector<std::string> SchemaMerger::constants_of(const Json& schema, const std::string& name, int depth) {
  std::vector<std::string> out;
  if (depth > 4 || !work_->spend(16)) return out;
  if (const std::string* reference = string_at(schema, "$ref"))
    if (const auto target = document_->target(*reference); target.ok())
      out = constants_of(*target.value(), name, depth + 1);
  if (const Json* all = member(schema, "allOf"); all != nullptr && all->is_array())
    for (const Json& part : *all)
      if (out.empty()) out = constants_of(part, name, depth + 1);
  const Json* properties = member(schema, "properties");
  if (!out.empty() || properties == nullptr || !properties->contains(name)) return out;
  const Json* value = &properties->at(name);
  if (const std::string* reference = string_at(*value, "$ref"))
    if (const auto target = document_->target(*reference); target.ok()) value = target.value();
  const auto add = [&](const Json& one) {
    if (one.is_string()) out.push_back(one.get<std::string>());
    return one.is_string();
  };
  if (const Json* constant = member(*value, "const"); constant != nullptr && add(*constant)) return out;
  if (const Json* list = member(*value, "enum"); list != nullptr && list->is_array())
    if (!std::ranges::all_of(*list, add)) out.clear();
  return out;
}

// Finds a property whose constants differ between the alternatives of a long list. Returns a schema of the alternatives that this property
// distinguishes; null: there is no such property.
const Json* SchemaMerger::apart_by_constant(const Json& list) {
  const auto [found, is_new] = apart_.try_emplace(&list, nullptr);
  if (!is_new) return found->second;
  // The names of all properties with constants in the first alternative.
  std::set<std::string> names;
  Schemas parts{&list[0]};
  for (size_t i = 0; i < parts.size() && i < 64 && work_->spend(16); ++i) {
    if (const Json* properties = member(*parts[i], "properties");
        properties != nullptr && properties->is_object())
      for (const auto& [name, inside] : properties->items()) names.insert(name);
    if (const std::string* reference = string_at(*parts[i], "$ref"))
      if (const auto target = document_->target(*reference); target.ok()) parts.push_back(target.value());
    if (const Json* all = member(*parts[i], "allOf"); all != nullptr && all->is_array())
      for (const Json& part : *all) parts.push_back(&part);
  }
  for (const std::string& name : names) {
    std::set<std::string> seen;
    const bool apart = std::ranges::all_of(list, [&](const Json& one) {
      const auto constants = constants_of(one, name, 0);
      return !constants.empty() && std::ranges::all_of(constants, [&](const std::string& text) {
        return seen.insert(text).second;
      });
    });
    if (apart)
      return found->second = document_->keep_once({{"type", "object"}, {"required", Json::array({name})}});
  }
  return nullptr;
}

// Adds to `out` the ways in which alternative `index` of "oneOf" holds and all other alternatives fail.
void SchemaMerger::add_alternatives(const Json& s, size_t index, std::vector<Alternative>* out) {
  constexpr size_t kComparedMax = 40, kWaysApartMax = 8, kLooksApart = 3, kSomeComparedMax = 6;
  const Json& list = s.at("oneOf");
  const Json& one = list[index];
  std::vector<Schemas> ways{{&one}};
  // Values of these types are checked at their end.
  uint8_t asked = 0;
  const auto ask = [&] {
    out->push_back({{&one}, {document_->only(s, {"oneOf"})}});
    if (asked != kAnyType) out->back().schemas.push_back(of_types(asked));
  };
  if (list.size() > kComparedMax) {
    if (const Json* apart = apart_by_constant(list)) return out->push_back({{&one, apart}});
    asked = kAnyType;
    return ask();
  }
  const auto excludes = [&](Schemas way, size_t other) {
    way.insert(way.end(), {beside(s), &list[other]});
    return impossible(way, 1);
  };
  uint8_t dropped = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i == index || excludes({&one}, i)) continue;
    WaysNot nots = ways_not(list[i], {beside(s), &one});
    // In a long list, one such negation for each other alternative would take too long.
    const auto asks_for_member = [](const Json* negation) { return negation->contains(kSomeMember); };
    if (list.size() > kSomeComparedMax && std::erase_if(nots.schemas, asks_for_member) > 0)
      nots.rest_types |= kObject;
    asked |= nots.rest_types;
    // A negation of an earlier alternative may exclude this one, too.
    const auto others = std::stable_partition(
        ways.begin(), ways.end(), [&](const Schemas& way) { return way.size() > 1 && excludes(way, i); });
    std::vector<Schemas> next(ways.begin(), others);
    for (auto before = others; before != ways.end(); ++before)
      for (const Json* also : nots.schemas) {
        Schemas both = *before;
        both.push_back(also);
        Schemas all = both;
        all.push_back(beside(s));
        if (!impossible(all, 1)) next.push_back(std::move(both));
      }
    if (next.size() > kWaysApartMax) {
      // Keeps the schemas that also exclude the next alternatives, as the values of a property that distinguishes alternatives do.
      const size_t end = std::min(list.size(), i + 1 + kLooksApart);
      std::stable_partition(next.begin(), next.end(), [&](const Schemas& way) {
        bool all = true;
        for (size_t other = i + 1; other < end && all; ++other) all = other == index || excludes(way, other);
        return all;
      });
      for (size_t k = kWaysApartMax; k < next.size(); ++k) {
        next[k].push_back(beside(s));
        dropped |= possible_types(next[k], 1);
      }
      next.resize(kWaysApartMax);
    }
    ways = std::move(next);
  }
  // Where some ways are left for a type, the dropped ones are values that are not generated.
  for (const Schemas& way : ways) {
    Schemas all = way;
    all.push_back(beside(s));
    dropped &= static_cast<uint8_t>(~possible_types(all, 1));
  }
  asked |= dropped;
  for (Schemas& way : ways) out->push_back({std::move(way)});
  if (asked != 0) ask();
}

static bool excludes_format(const Json& never) {
  const auto format = never.find("format");
  return format != never.end() && format->is_string() &&
         format_values(format->get<std::string>(), Bound::kOuter) != nullptr;
}

Status SchemaMerger::add_not(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions, int depth) {
  const Json& never = s.at("not");
  m->nevers.push_back(&never);
  if (never.is_object() && never.size() == 1 &&
      (never.contains("enum") || never.contains("const") || never.contains("pattern") ||
       excludes_format(never))) {
    if (never.contains("pattern") || never.contains("format")) {
      SLUICE_TRY(prepare_validation(*document_, never, work_));
      m->typed = true;
      m->types &= kString;  // other types always satisfy a pattern
    }
    m->excluded.push_back(&never);
    m->effective.push_back(&s);
    return {};
  }
  if (never == Json{{"type", "integer"}}) {
    m->number.fraction = true;
    m->effective.push_back(&s);
    return {};
  }
  if (never.is_object() && never.size() == 1 && never.contains("multipleOf")) {
    const auto d = Decimal::of(never.at("multipleOf"));
    if (!d || d->negative || d->is_zero())
      return wrong_keyword("multipleOf", "a number above 0", never.at("multipleOf"));
    m->typed = true;
    m->types &= kNumber;  // other types always satisfy "multipleOf"
    m->number.not_multiples.push_back(*d);
    m->effective.push_back(&s);
    return check(*document_->only(s, {"not"}), m);  // some checkers divide doubles
  }
  if (never == Json{{"uniqueItems", true}}) {
    m->typed = m->repeated = true;
    m->types &= kArray;  // other types always satisfy "uniqueItems"
    m->effective.push_back(&s);
    return {};
  }
  if (depth > 0) {
    const Nots& nots = nots_of(never);
    std::vector<Alternative> some;
    for (const Json* one : nots.schemas) some.push_back({{one}});
    if (nots.rest != nullptr) some.push_back({{nots.rest}});
    return choose({&s, "not"}, std::move(some), m, todo, decisions);
  }
  auto found = negations_.find(&never);
  if (found == negations_.end()) {
    std::vector<Alternative> alternatives;
    const WaysNot nots = ways_not(never, {beside(s)});
    for (const Json* one : nots.schemas) alternatives.push_back({{one}});
    if (nots.rest) alternatives.push_back({{nots.rest}, {document_->only(s, {"not"})}});
    found = negations_.emplace(&never, std::move(alternatives)).first;
  }
  return choose({&s, "not"}, found->second, m, todo, decisions);
}

Status SchemaMerger::add_condition(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions,
                                   int depth) {
  const Json& condition = s.at("if");
  const Json *then = member(s, "then"), *otherwise = member(s, "else");
  if (const auto& needs = needs_of(s, "if"); !needs.empty() && otherwise == nullptr) {
    m->about |= kObject;
    m->needs.push_back(&needs[0]);
    return {};
  }
  auto found = negations_.find(&condition);
  if (found == negations_.end() || depth > 0) {
    std::vector<Alternative> alternatives{{{&condition}}};
    if (then != nullptr) alternatives[0].schemas.push_back(then);
    const Nots& all = nots_of(condition);
    const WaysNot nots = depth == 0 ? ways_not(condition, {beside(s)}) : WaysNot{all.schemas, all.rest};
    for (const Json* one : nots.schemas) {
      alternatives.push_back({{one}});
      if (otherwise != nullptr) alternatives.back().schemas.push_back(otherwise);
    }
    // The rest can only be checked on the value.
    if (nots.rest) {
      alternatives.push_back({{nots.rest}});
      if (depth == 0) alternatives.back().checks.push_back(document_->only(s, {"if", "then", "else"}));
      if (otherwise != nullptr) alternatives.back().schemas.push_back(otherwise);
    }
    if (depth > 0) return choose({&s, "if"}, std::move(alternatives), m, todo, decisions);
    found = negations_.emplace(&condition, std::move(alternatives)).first;
  }
  return choose({&s, "if"}, found->second, m, todo, decisions);
}

}  // namespace sluice
