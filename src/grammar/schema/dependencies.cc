// Dependencies between members of an object: "dependentRequired", "dependentSchemas" and "dependencies".
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "grammar/program.h"
#include "grammar/schema/merge.h"

namespace sluice {
namespace {

constexpr size_t kSchemasMax = 6;  // dependencies on schemas, each of which may double the ways

bool is_names(const Json& wanted) { return wanted.is_array() || wanted.is_string(); }

bool is_only_required(const Json& wanted) {
  if (!wanted.is_object()) return false;
  const auto says_nothing_else = [](const auto& item) {
    static const std::set<std::string> kNotes = {"required", "title", "description", "$comment"};
    return kNotes.contains(item.key()) || (item.key() == "type" && item.value() == "object");
  };
  const auto items = wanted.items();
  return std::all_of(items.begin(), items.end(), says_nothing_else);
}

// The members that must be present according to the value of a dependency.
std::vector<std::string> names_of(const Json& wanted) {
  if (wanted.is_string()) return {wanted.get<std::string>()};
  const Json* list = wanted.is_object() ? member(wanted, "required") : &wanted;
  std::vector<std::string> out;
  if (list == nullptr || !list->is_array()) return out;
  for (const Json& name : *list)
    if (name.is_string()) out.push_back(name.get<std::string>());
  return out;
}

// Steps of work for one look at a dependency.
int64_t steps_of(const Need& need) { return 16 * (1 + std::ssize(need.wanted)); }

// Whether a schema of `m` excludes this member by name.
bool is_forbidden(const Merged& m, const std::string& name) {
  return std::ranges::any_of(m.objects, [&](const Json* object) {
    const auto properties = object->find("properties");
    if (properties != object->end() && properties->is_object() && properties->contains(name))
      return properties->at(name) == Json(false);
    const auto others = object->find("additionalProperties");
    return others != object->end() && *others == Json(false) && !object->contains("patternProperties");
  });
}

}  // namespace

const Json* SchemaMerger::absent(const std::string& name) {
  const Json*& out = absent_[name];
  if (out == nullptr) out = document_->keep(Json{{"properties", Json{{name, false}}}});
  return out;
}

Status SchemaMerger::add_dependencies(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions) {
  for (const char* keyword : {"dependentRequired", "dependencies", "dependentSchemas"}) {
    const Json* all = member(s, keyword);
    if (all == nullptr) continue;
    if (!all->is_object()) return wrong_keyword(keyword, "an object", *all);
    m->about |= kObject;
    for (const Need& need : needs_of(s, keyword)) {
      if (!work_->spend(steps_of(need))) return schema_too_long();
      m->needs.push_back(&need);
    }
    const auto is_schema = [](const Json& wanted) { return !is_names(wanted) && !is_only_required(wanted); };
    if (static_cast<size_t>(std::ranges::count_if(*all, is_schema)) > kSchemasMax) {
      SLUICE_TRY(check(*document_->only(s, {keyword}), m));
      continue;
    }
    // The member is absent, or it is present and its schema holds.
    for (const auto& [name, wanted] : all->items()) {
      if (!is_schema(wanted)) continue;
      const ChoiceKey key{&s, std::string(keyword) + "/" + name};
      auto found = dependencies_.find(key);
      if (found == dependencies_.end()) {
        const Json* present = document_->keep(Json{{"required", Json::array({name})}});
        found = dependencies_.emplace(key, std::vector<Alternative>{{{present, &wanted}}, {{absent(name)}}})
                    .first;
      }
      SLUICE_TRY(choose(key, found->second, m, todo, decisions));
    }
  }
  return {};
}

const std::vector<Need>& SchemaMerger::needs_of(const Json& s, const std::string& keyword) {
  const auto [found, is_new] = needs_.try_emplace({&s, keyword});
  if (!is_new) return found->second;
  if (keyword == "if") {
    // With one member others are required, and nothing else is said: a dependency in other words.
    const Json &condition = s.at("if"), *then = member(s, "then");
    const auto triggers = names_of(condition);
    if (then == nullptr || triggers.size() != 1 || then->contains("type") || !is_only_required(condition) ||
        !is_only_required(*then))
      return found->second;
    found->second.push_back({triggers[0], names_of(*then)});
    return found->second;
  }
  for (const auto& [name, wanted] : s.at(keyword).items())
    if (auto names = names_of(wanted); !names.empty()) found->second.push_back({name, std::move(names)});
  return found->second;
}

Status SchemaMerger::settle_needs(Merged* m, Schemas* todo) {
  if ((m->types & kObject) == 0 || m->needs.empty()) return {};
  std::set<std::string> names;
  for (const Need* need : m->needs) {
    if (!work_->spend(steps_of(*need))) return schema_too_long();
    names.insert(need->trigger);
    names.insert(need->wanted.begin(), need->wanted.end());
  }
  if (names.size() > Dependencies::kMax)
    return invalid("JSON schema: dependentRequired: wanted at most " + std::to_string(Dependencies::kMax) +
                   " members of an object that depend on each other, found " + std::to_string(names.size()));
  std::set<std::string> required(m->required.begin(), m->required.end()), forbidden;
  for (const std::string& name : names) {
    if (!work_->spend(std::ssize(m->objects))) return schema_too_long();
    if (is_forbidden(*m, name)) forbidden.insert(name);
  }
  const auto is_in = [](const std::set<std::string>& those) {
    return [&](const std::string& name) { return those.contains(name); };
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const Need* need : m->needs) {
      if (!work_->spend(steps_of(*need))) return schema_too_long();
      if (required.contains(need->trigger)) {
        for (const std::string& name : need->wanted)
          if (required.insert(name).second) m->required.push_back(name), changed = true;
      } else if (!forbidden.contains(need->trigger) && std::ranges::any_of(need->wanted, is_in(forbidden))) {
        forbidden.insert(need->trigger), changed = true;
        todo->push_back(absent(need->trigger));
      }
    }
  }
  return {};
}

}  // namespace sluice
