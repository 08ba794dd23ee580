#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/printable.h"
#include "grammar/schema/rules.h"
#include "grammar/schema/values.h"

namespace sluice {
namespace {

constexpr size_t kNamesListedMax = 256, kKindsMax = 32;

bool declares_members(const Merged& m) {
  return std::ranges::any_of(m.objects, [](const Json* schema) {
    const Json* properties = member(*schema, "properties");
    return properties != nullptr &&
           std::ranges::any_of(*properties, [](const Json& p) { return p != Json(false); });
  });
}

// Whether the object may have members that no schema declares, even if it does not need them.
bool takes_others(const Merged& m) {
  bool asks = m.objects.empty();
  for (const Json* schema : m.objects)
    asks |= schema->contains("patternProperties") || schema->contains("additionalProperties") ||
            schema->contains("propertyNames") ||
            (schema->contains("unevaluatedProperties") && schema->at("unevaluatedProperties") != Json(false));
  return asks || !declares_members(m);
}

}  // namespace

// The values of "unevaluatedProperties" that apply to a member. The keyword of a schema applies unless a part of that schema evaluates the
// member. `evaluated`: the schemas that evaluate the member.
Schemas ObjectRules::unevaluated_by(const Merged& m, const std::set<const Json*>& evaluated) {
  Schemas out;
  for (const Json* schema : m.objects) {
    const Json* unevaluated = member(*schema, "unevaluatedProperties");
    if (unevaluated == nullptr || !c_.work_->spend(4 * std::ssize(m.objects))) continue;
    const auto& parts = c_.parts_of(schema);
    const auto says = [&](const Json* other) {
      return parts.contains(other) &&
             (evaluated.contains(other) || (other != schema && other->contains("unevaluatedProperties")));
    };
    if (std::none_of(m.objects.begin(), m.objects.end(), says)) out.push_back(unevaluated);
  }
  return out;
}

// All schemas that apply to the member `name`.
Result<Schemas> ObjectRules::of_name(const Merged& m, const std::string& name) {
  if (!c_.work_->spend(8 * std::ssize(m.objects))) return schema_too_long();
  Schemas out;
  std::set<const Json*> evaluated;  // the schemas that evaluate the member
  for (const Json* schema : m.objects) {
    bool here = false;
    if (const Json* properties = member(*schema, "properties");
        properties != nullptr && properties->contains(name)) {
      out.push_back(&properties->at(name));
      here = true;
    }
    if (const Json* patterns = member(*schema, "patternProperties"))
      for (const auto& [pattern, inside] : patterns->items()) {
        const auto low = c_.document_->pattern(pattern, Bound::kInner, c_.work_);
        const auto high = c_.document_->pattern(pattern, Bound::kOuter, c_.work_);
        if (!low.ok() || !high.ok())
          return Status{Code::kInvalidArgument, "JSON schema: " + (low.ok() ? high : low).status().message};
        if (high.value()->matches(name)) out.push_back(&inside);
        here |= low.value()->matches(name);
      }
    if (here || schema->contains("additionalProperties")) evaluated.insert(schema);
    const Json* others = member(*schema, "additionalProperties");
    if (!here && others != nullptr) out.push_back(others);
  }
  for (const Json* schema : unevaluated_by(m, evaluated)) out.push_back(schema);
  return out;
}

Result<bool> ObjectRules::is_named_well(const Merged& m, const std::string& name) {
  for (const Json* schema : m.objects)
    if (const Json* names = member(*schema, "propertyNames")) {
      SLUICE_TRY(prepare_validation(*c_.document_, *names, c_.work_));
      if (!is_valid(*c_.document_, Json(name), *names, Bound::kInner, c_.work_)) return false;
    }
  return true;
}

Status ObjectRules::add_member(const Merged& m, const std::string& name, bool required) {
  const auto well = is_named_well(m, name);
  if (!well.ok()) return well.status();
  auto schemas = of_name(m, name);
  if (!schemas.ok()) return schemas.status();
  bool closed = std::any_of(schemas.value().begin(), schemas.value().end(),
                            [](const Json* s) { return *s == Json(false); });
  // A member for which no value is valid does not count towards "minProperties".
  closed |= m.least_members > 0 && c_.merger_.impossible(schemas.value());
  if (!well.value() || closed) {
    never_ |= required;
    return {};
  }
  const auto value = c_.callee(schemas.value());
  if (!value.ok()) return value.status();
  members_.push_back({name, value.value(), required});
  return {};
}

Status ObjectRules::list_members(const Merged& m) {
  std::set<std::string> listed;
  const std::unordered_set<std::string> required(m.required.begin(), m.required.end());
  for (const Json* schema : m.objects)
    if (const Json* properties = member(*schema, "properties"))
      for (const std::string& name : c_.document_->keys(*properties))
        if (listed.insert(name).second) SLUICE_TRY(add_member(m, name, required.contains(name)));
  for (const std::string& name : m.required)
    if (listed.insert(name).second) SLUICE_TRY(add_member(m, name, true));
  return m.needs.empty() ? Status{} : list_needed(m, &listed);
}

Status ObjectRules::list_needed(const Merged& m, std::set<std::string>* listed) {
  std::set<std::string> present;
  const auto add = [&](const std::string& name) -> Status {
    if (listed->insert(name).second) SLUICE_TRY(add_member(m, name, false));
    return {};
  };
  const size_t declared = members_.size();
  const auto note_present = [&] {
    present.clear();
    for (const Member& one : members_) present.insert(one.name);
    return c_.work_->spend(8 * std::ssize(members_));
  };
  if (takes_others(m))
    for (const Need* need : m.needs) SLUICE_TRY(add(need->trigger));
  for (size_t before = members_.size() + 1; before != members_.size();) {
    before = members_.size();
    if (!note_present()) return schema_too_long();
    for (const Need* need : m.needs)
      if (present.contains(need->trigger))
        for (const std::string& name : need->wanted) SLUICE_TRY(add(name));
  }
  if (!takes_others(m) && m.least_members <= static_cast<int64_t>(declared))
    for (size_t i = declared; i < members_.size(); ++i) members_[i].unasked = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Need* need : m.needs) {
      if (!c_.work_->spend(16 * (1 + std::ssize(need->wanted)))) return schema_too_long();
      if (!present.contains(need->trigger)) continue;
      const auto is_present = [&](const std::string& name) { return present.contains(name); };
      if (std::ranges::all_of(need->wanted, is_present)) continue;
      std::erase_if(members_, [&](const Member& one) {
        never_ |= one.required && one.name == need->trigger;
        return one.name == need->trigger;
      });
      present.erase(need->trigger);
      changed = true;
    }
  }
  return {};
}

std::shared_ptr<Dependencies> ObjectRules::dependencies(const Merged& m,
                                                        std::vector<int32_t>* numbers) const {
  using Members = Dependencies::Members;
  std::set<std::string> linked, required(m.required.begin(), m.required.end());
  std::vector<std::pair<std::string, std::string>> links;
  for (const Need* need : m.needs)
    for (const std::string& name : need->wanted)
      if (!required.contains(name)) links.emplace_back(need->trigger, name);
  for (const auto& [trigger, name] : links) linked.insert({trigger, name});
  Dependencies out;
  std::map<std::string, size_t> number_of;
  for (const Member& one : members_) {
    const bool is_linked = linked.contains(one.name);
    numbers->push_back(is_linked ? static_cast<int32_t>(out.wanted.size()) : -1);
    if (!is_linked) continue;
    number_of[one.name] = out.wanted.size();
    if (one.unasked) out.unasked.set(out.wanted.size());
    out.wanted.push_back(Members().set(out.wanted.size()));
  }
  for (const auto& [trigger, name] : links)
    if (number_of.contains(trigger)) out.wanted[number_of[trigger]].set(number_of.at(name));
  const int64_t count = std::ssize(out.wanted);
  if (count == 0 || !c_.work_->spend(count * count / 4)) return nullptr;
  for (size_t middle = 0; middle < out.wanted.size(); ++middle)
    for (Members& wanted : out.wanted)
      if (wanted[middle]) wanted |= out.wanted[middle];
  for (const std::string& name : m.required)
    if (number_of.contains(name)) out.required |= out.wanted[number_of[name]];
  return std::make_shared<Dependencies>(std::move(out));
}

// Intersects `all` with the names that "propertyNames" allows.
Status ObjectRules::add_names(const Json& names, Dfa* all, Schemas* checks) {
  std::vector<Merged> ways;
  SLUICE_TRY(c_.merger_.ways({&names}, &ways));
  MaybeDfa allowed = Dfa();
  for (const Merged& way : ways) {
    if ((way.types & kString) == 0) continue;
    if (!way.checks.empty()) {
      SLUICE_TRY(prepare_validation(*c_.document_, names, c_.work_));
      checks->push_back(&names);
    }
    MaybeDfa one;
    if (!way.values.empty()) {
      std::vector<std::string> texts;
      SLUICE_TRY(prepare_validation(*c_.document_, names, c_.work_));
      for (const Json* value : listed_values(way, {&names}, *c_.document_, c_.work_)) {
        if (!value->is_string()) continue;
        texts.push_back(value->get<std::string>());
        if (!c_.work_->spend(kTextByteSteps * std::ssize(texts.back()))) return schema_too_long();
      }
      one = Dfa::of_texts(texts);
    } else {
      auto values = string_values(way, c_.document_.get(), c_.work_);
      if (!values.ok()) return values.status();
      one = std::move(values).value();
      if (way.least_length > 0 || way.most_length >= 0)
        one = with_length(*one, way.least_length, way.most_length, c_.work_);
    }
    allowed = one && allowed ? combine(*allowed, *one, SetOp::kEither, c_.work_) : std::nullopt;
    if (!allowed) return schema_too_long();
  }
  allowed = combine(*all, *allowed, SetOp::kBoth, c_.work_);
  if (!allowed) return schema_too_long();
  *all = std::move(*allowed);
  return {};
}

// Groups unlisted names by the patterns that they match. The groups are cached, because the alternatives of an object often need the same.
Result<const OtherNames*> ObjectRules::other_names(const Merged& m, const std::set<std::string>& listed) {
  Schemas about_names;
  for (const Json* schema : m.objects)
    if (schema->contains("patternProperties") || schema->contains("propertyNames"))
      about_names.push_back(schema);
  const auto key = std::pair(listed, about_names);
  if (const auto known = c_.other_names_.find(key); known != c_.other_names_.end()) return &known->second;
  OtherNames out;
  const std::vector<std::string> texts(listed.begin(), listed.end());
  auto free = combine(Dfa::any_text(), Dfa::of_texts(texts), SetOp::kFirstOnly, c_.work_);
  if (!free) return schema_too_long();
  for (const Json* schema : about_names)
    if (const Json* names = member(*schema, "propertyNames"))
      SLUICE_TRY(add_names(*names, &*free, &out.checks));
  struct Split {
    Dfa names;
    OtherNames::Kind kind;
  };
  std::vector<Split> splits;
  splits.push_back({std::move(*free), {}});
  for (const Json* schema : about_names) {
    const Json* patterns = member(*schema, "patternProperties");
    if (patterns == nullptr) continue;
    for (const auto& [pattern, inside] : patterns->items()) {
      const auto low = c_.document_->pattern(pattern, Bound::kInner, c_.work_);
      const auto high = c_.document_->pattern(pattern, Bound::kOuter, c_.work_);
      if (!low.ok() || !high.ok())
        return Status{Code::kInvalidArgument, "JSON schema: " + (low.ok() ? high : low).status().message};
      std::vector<Split> next;
      for (Split& split : splits) {
        auto in = combine(split.names, *low.value(), SetOp::kBoth, c_.work_);
        auto out_of = combine(split.names, *high.value(), SetOp::kFirstOnly, c_.work_);
        if (!in || !out_of) return schema_too_long();
        if (!in->empty()) {
          next.push_back({std::move(*in), split.kind});
          next.back().kind.schemas.push_back(&inside);
          next.back().kind.matched.insert(schema);
        }
        if (!out_of->empty()) next.push_back({std::move(*out_of), split.kind});
      }
      splits = std::move(next);
      if (splits.size() > kKindsMax)
        return invalid("JSON schema: patternProperties: wanted at most " + std::to_string(kKindsMax) +
                       " kinds of names, found more");
    }
  }
  for (Split& split : splits) {
    if (auto few = split.names.texts(kNamesListedMax)) {
      split.kind.few = std::move(*few);
    } else {
      auto leaf = json_strings(split.names, 0, -1, c_.work_);
      if (!leaf) return schema_too_long();
      split.kind.leaf = std::make_shared<const Leaf>(std::move(*leaf));
      c_.kept_leaves_.push_back(split.kind.leaf);
    }
    out.kinds.push_back(std::move(split.kind));
  }
  return &c_.other_names_.emplace(key, std::move(out)).first->second;
}

Status ObjectRules::list_others(const Merged& m) {
  const bool declares = declares_members(m);
  if (!takes_others(m) || m.most_members == 0) {
    if (m.least_members <= std::ssize(members_)) return {};
  }
  std::set<std::string> listed(m.required.begin(), m.required.end());
  for (const Json* schema : m.objects)
    if (const Json* properties = member(*schema, "properties"))
      for (const auto& [name, value] : properties->items()) listed.insert(name);
  for (const Need* need : m.needs) {
    listed.insert(need->trigger);
    listed.insert(need->wanted.begin(), need->wanted.end());
  }
  const auto all = other_names(m, listed);
  if (!all.ok()) return all.status();
  name_checks_ = all.value()->checks;
  const auto few = [&] { return m.least_members > std::ssize(members_); };
  std::vector<std::pair<const OtherNames::Kind*, Schemas>> left_out;
  for (const OtherNames::Kind& kind : all.value()->kinds) {
    Schemas schemas = kind.schemas;
    bool asked = !kind.matched.empty() || !declares, closed = false, matches_none = false;
    std::set<const Json*> evaluated = kind.matched;
    for (const Json* schema : m.objects) {
      if (kind.matched.contains(schema)) continue;
      const Json* others = member(*schema, "additionalProperties");
      if (others != nullptr) {
        asked = true;
        closed |= *others == Json(false);
        schemas.push_back(others);
        evaluated.insert(schema);
      }
      // A schema with "patternProperties" but no schema for other names: names that match no pattern are left out if possible.
      if (others == nullptr && kind.matched.empty() && schema->contains("patternProperties"))
        matches_none = true;
    }
    for (const Json* unevaluated : unevaluated_by(m, evaluated)) {
      asked |= *unevaluated != Json(false);
      closed |= *unevaluated == Json(false);
      schemas.push_back(unevaluated);
    }
    if (closed || (few() && c_.merger_.impossible(schemas))) continue;
    if (matches_none) {
      left_out.emplace_back(&kind, std::move(schemas));
    } else if (asked || few()) {
      SLUICE_TRY(add_others(m, kind, schemas));
    }
  }
  // If "minProperties" needs more members than the names above allow, or if the value is checked, names that match no pattern are added.
  for (const auto& [kind, schemas] : left_out)
    if ((others_.empty() && few()) || !m.checks.empty()) SLUICE_TRY(add_others(m, *kind, schemas));
  return {};
}

Status ObjectRules::add_others(const Merged& m, const OtherNames::Kind& kind, const Schemas& schemas) {
  // A kind with few names is listed as optional members.
  for (const std::string& name : kind.few) SLUICE_TRY(add_member(m, name, false));
  if (kind.leaf == nullptr) return {};
  const auto value = c_.callee(schemas);
  if (!value.ok()) return value.status();
  others_.push_back({kind.leaf, value.value()});
  return {};
}

Result<Callee> ObjectRules::rule(const Merged& m) {
  SLUICE_TRY(list_members(m));
  if (never_) return c_.never();
  SLUICE_TRY(list_others(m));
  return build(m);
}

Result<Callee> ObjectRules::build(const Merged& m) {
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t rule = program_.add_rule();
  {
    Program::Rule& r = program_.rules[static_cast<size_t>(rule)];
    r.least = static_cast<int32_t>(m.least_members);
    if (m.most_members >= 0) r.most = static_cast<int32_t>(m.most_members);
  }
  const int32_t end = program_.add_state(rule), opened = program_.add_state(rule);
  program_.states[static_cast<size_t>(end)].final = true;
  program_.add_call(program_.start(rule), c_.common(leaves.open_object), opened);
  std::vector<int32_t> numbers;
  const auto of = dependencies(m, &numbers);
  program_.rules[static_cast<size_t>(rule)].dependencies = of;
  int32_t passed = 0;
  const auto place = [&](int32_t state, int32_t open = -1) {
    program_.states[static_cast<size_t>(state)].passed = passed;
    program_.states[static_cast<size_t>(state)].open = open;
  };
  // names[i]: the state before the name of member i or of a later member. after[i]: the state after a member that precedes member i; the
  // object may end there, or a comma leads to names[i].
  std::vector<int32_t> names, after;
  for (size_t i = 0; i <= members_.size(); ++i) {
    names.push_back(program_.add_state(rule));
    after.push_back(program_.add_state(rule));
    program_.states[static_cast<size_t>(names[i])].must = true;
    place(names[i]);
    place(after[i]);
    if (i < members_.size() && numbers[i] >= 0) ++passed;
  }
  place(end);
  size_t last_required = 0;  // the object may end only at after[i] with i >= last_required
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i].required) last_required = i + 1;
  program_.add_call(opened, c_.common(leaves.blanks), names[0]);
  program_.add_empty(opened, names[0]);
  if (last_required == 0) program_.add_call(opened, c_.common(leaves.close_object), end);
  // As in arrays: if a check may reject the end of the object, a blank after a member must not exclude a comma.
  const Callee comma = c_.common(m.checks.empty() ? leaves.comma : leaves.comma_in_blanks);
  for (size_t i = 0; i <= members_.size(); ++i) {
    program_.add_call(after[i], comma, names[i]);
    if (i >= last_required) program_.add_call(after[i], c_.common(leaves.close_object), end);
  }
  passed = 0;
  for (size_t i = 0; i < members_.size(); ++i) {
    const int32_t colon = program_.add_state(rule), value = program_.add_state(rule);
    passed = std::max(passed, numbers[i] + 1);
    place(colon, numbers[i]);
    place(value, numbers[i]);
    program_.add_call(names[i], c_.name(members_[i].name), colon);
    program_.add_call(colon, c_.common(leaves.blanks), value);
    program_.add_empty(colon, value);
    program_.add_call(value, members_[i].value, after[i + 1], true);
    program_.states[static_cast<size_t>(value)].calls.back().member = numbers[i];
    if (!members_[i].required) program_.add_empty(names[i], names[i + 1]);
  }
  for (const Others& others : others_) {
    const int32_t colon = program_.add_state(rule), value = program_.add_state(rule);
    Callee name = c_.common(others.name);
    if (!name_checks_.empty()) name = c_.checked(name, name_checks_);
    // Names must be unique.
    place(colon);
    place(value);
    program_.add_call(names.back(), name, colon, false, Among::kNew);
    program_.add_call(colon, c_.common(leaves.colon), value);
    program_.add_call(value, others.value, after.back(), true);
  }
  return rule;
}

}  // namespace sluice
