// The members that an object's rule has because of other members, and the states that read them.
#include <algorithm>
#include <set>

#include "grammar/schema/rules.h"
#include "grammar/schema/values.h"

namespace sluice {

bool declares_members(const Merged& m) {
  return std::ranges::any_of(m.objects, [](const Json* schema) {
    const Json* properties = member(*schema, "properties");
    return properties != nullptr &&
           std::ranges::any_of(*properties, [](const Json& p) { return p != Json(false); });
  });
}

bool takes_others(const Merged& m) {
  bool asks = m.objects.empty();
  for (const Json* schema : m.objects)
    asks |= schema->contains("patternProperties") || schema->contains("additionalProperties") ||
            schema->contains("propertyNames") ||
            (schema->contains("unevaluatedProperties") && schema->at("unevaluatedProperties") != Json(false));
  return asks || !declares_members(m);
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
  if (!takes_others(m) && m.min_members <= static_cast<int64_t>(declared))
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

Result<bool> ObjectRules::is_some(const Json& some, const std::string& name) {
  SLUICE_TRY(prepare_validation(*c_.document_, some.at("names"), c_.work_));
  return is_valid(*c_.document_, Json(name), some.at("names"), Bound::kInner, c_.work_);
}

Result<bool> ObjectRules::lacks_some(const Merged& m) {
  for (const Json* some : m.some) {
    bool found = false;
    for (const Member& one : members_) {
      const auto named = is_some(*some, one.name);
      if (!named.ok()) return named.status();
      Schemas with = one.schemas;
      with.push_back(&some->at("value"));
      found |= named.value() && !c_.merger_.impossible(with);
      if (found) break;
    }
    if (!found) return true;
  }
  return false;
}

Result<std::vector<std::pair<Callee, size_t>>> ObjectRules::ways_of(const Merged& m, const Member& one,
                                                                    size_t layer) {
  std::vector<std::pair<Callee, size_t>> out{{one.value, layer}};
  size_t could = 0;
  for (size_t i = 0; i < m.some.size(); ++i) {
    const auto named = is_some(*m.some[i], one.name);
    if (!named.ok()) return named.status();
    if (named.value()) could |= size_t{1} << i;
  }
  for (size_t also = 1; also < size_t{1} << m.some.size(); ++also) {
    if ((also & ~could) != 0 || (also & layer) != 0) continue;
    Schemas schemas = one.schemas;
    for (size_t i = 0; i < m.some.size(); ++i)
      if ((also >> i & 1) != 0) schemas.push_back(&m.some[i]->at("value"));
    const auto value = c_.callee(schemas);
    if (!value.ok()) return value.status();
    out.emplace_back(value.value(), layer | also);
  }
  return out;
}

Result<std::vector<ObjectRules::OtherWay>> ObjectRules::ways_of(const Merged& m, const Others& others,
                                                                size_t layer) {
  Callee name = c_.common(others.kind->leaf);
  if (!name_checks_.empty()) name = c_.checked(name, name_checks_);
  std::vector<OtherWay> out{{name, others.value, layer}};
  for (size_t also = 1; also < size_t{1} << m.some.size(); ++also) {
    if ((also & layer) != 0) continue;
    Schemas schemas = others.schemas, checks = name_checks_;
    Dfa names = *others.kind->names;
    for (size_t i = 0; i < m.some.size(); ++i) {
      if ((also >> i & 1) == 0) continue;
      schemas.push_back(&m.some[i]->at("value"));
      SLUICE_TRY(add_names(m.some[i]->at("names"), &names, &checks));
    }
    if (names.empty()) continue;
    auto leaf = json_strings(names, 0, -1, c_.work_);
    if (!leaf) return schema_too_long();
    const auto value = c_.callee(schemas);
    if (!value.ok()) return value.status();
    name = c_.common(std::make_shared<const Leaf>(std::move(*leaf)));
    if (!checks.empty()) name = c_.checked(name, checks);
    out.push_back({name, value.value(), layer | also});
  }
  return out;
}

Result<Callee> ObjectRules::build(const Merged& m) {
  const CommonLeaves& leaves = CommonLeaves::get();
  const int32_t rule = program_.add_rule();
  {
    Program::Rule& r = program_.rules[static_cast<size_t>(rule)];
    r.least = static_cast<int32_t>(m.min_members);
    if (m.max_members >= 0) r.most = static_cast<int32_t>(m.max_members);
  }
  std::vector<int32_t> numbers;
  program_.rules[static_cast<size_t>(rule)].dependencies = dependencies(m, &numbers);
  end_ = program_.add_state(rule);
  program_.states[static_cast<size_t>(end_)].final = true;
  const int32_t opened = program_.add_state(rule);
  program_.add_call(program_.start(rule), c_.common(leaves.open_object), opened);
  const size_t layers = size_t{1} << m.some.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    int32_t passed = 0;
    names_.emplace_back(), after_.emplace_back();
    for (size_t i = 0; i <= members_.size(); ++i) {
      for (auto* list : {&names_, &after_}) {
        list->back().push_back(program_.add_state(rule));
        program_.states.back().passed = passed;
        program_.states.back().must = list == &names_;
      }
      if (i < members_.size() && numbers[i] >= 0) ++passed;
    }
    program_.states[static_cast<size_t>(end_)].passed = passed;
  }
  const bool required = std::ranges::any_of(members_, &Member::required);
  program_.add_call(opened, c_.common(leaves.blanks), names_[0][0]);
  program_.add_empty(opened, names_[0][0]);
  if (!required && m.some.empty()) program_.add_call(opened, c_.common(leaves.close_object), end_);
  for (size_t layer = 0; layer < layers; ++layer) SLUICE_TRY(build_layer(m, numbers, layer));
  return rule;
}

Status ObjectRules::build_layer(const Merged& m, const std::vector<int32_t>& numbers, size_t layer) {
  const CommonLeaves& leaves = CommonLeaves::get();
  const std::vector<int32_t>&names = names_[layer], &after = after_[layer];
  const int32_t rule = program_.states[static_cast<size_t>(end_)].rule;
  size_t last_required = 0;  // the object may end only at after[i] with i >= last_required
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i].required) last_required = i + 1;
  // As in arrays: if a check may reject the end of the object, a blank after a member must not exclude a comma.
  const Callee comma = c_.common(m.checks.empty() && m.some.empty() ? leaves.comma : leaves.comma_in_blanks);
  for (size_t i = 0; i <= members_.size(); ++i) {
    program_.add_call(after[i], comma, names[i]);
    if (i >= last_required && layer + 1 == names_.size())
      program_.add_call(after[i], c_.common(leaves.close_object), end_);
  }
  int32_t passed = 0;
  const auto add_state = [&](int32_t open) {
    const int32_t out = program_.add_state(rule);
    program_.states.back().passed = passed;
    program_.states.back().open = open;
    return out;
  };
  for (size_t i = 0; i < members_.size(); ++i) {
    passed = std::max(passed, numbers[i] + 1);
    const int32_t colon = add_state(numbers[i]), value = add_state(numbers[i]);
    program_.add_call(names[i], c_.name(members_[i].name), colon);
    program_.add_call(colon, c_.common(leaves.blanks), value);
    program_.add_empty(colon, value);
    const auto ways = ways_of(m, members_[i], layer);
    if (!ways.ok()) return ways.status();
    for (const auto& [callee, to] : ways.value()) {
      program_.add_call(value, callee, after_[to][i + 1], true);
      program_.states[static_cast<size_t>(value)].calls.back().member = numbers[i];
    }
    if (!members_[i].required) program_.add_empty(names[i], names[i + 1]);
  }
  for (const Others& others : others_) {
    const auto ways = ways_of(m, others, layer);
    if (!ways.ok()) return ways.status();
    for (const OtherWay& way : ways.value()) {
      const int32_t colon = add_state(-1), value = add_state(-1);
      // Names must be unique.
      program_.add_call(names.back(), way.name, colon, false, Among::kNew);
      program_.add_call(colon, c_.common(leaves.colon), value);
      program_.add_call(value, way.value, after_[way.layer].back(), true);
    }
  }
  return {};
}

}  // namespace sluice
