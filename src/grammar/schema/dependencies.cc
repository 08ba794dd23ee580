// Dependencies between members of an object: "dependentRequired", "dependentSchemas" and "dependencies".
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "grammar/schema/merge.h"

namespace sluice {
namespace {

// Each way of a choice looks at all needs. With more looks, or more needs, the whole value is checked at its end instead.
constexpr int64_t kLooksMax = 400, kNeedsMax = 40;
constexpr size_t kSchemasMax = 6;  // dependencies on schemas, each of which may double the ways

bool is_names(const Json& wanted) { return wanted.is_array() || wanted.is_string(); }

std::vector<std::string> names_of(const Json& wanted) {
  std::vector<std::string> out;
  if (wanted.is_string()) out.push_back(wanted.get<std::string>());
  if (wanted.is_array())
    for (const Json& name : wanted)
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

// The number of ways into which settle_needs() splits `needs`, or a number above `most`.
int64_t ways_of_needs(const std::vector<Need>& needs, std::set<std::string> present,
                      std::set<std::string> absent, int64_t most, Work* work) {
  const auto in = [](const std::set<std::string>& names) {
    return [&](const std::string& name) { return names.contains(name); };
  };
  const Need* open = nullptr;
  for (bool changed = true; changed;) {
    changed = false, open = nullptr;
    for (const Need& need : needs) {
      if (!work->spend(steps_of(need))) return most + 1;
      if (absent.contains(need.trigger) || std::ranges::all_of(need.wanted, in(present))) continue;
      if (present.contains(need.trigger)) {
        if (std::ranges::any_of(need.wanted, in(absent))) return 0;
        present.insert(need.wanted.begin(), need.wanted.end()), changed = true;
      } else if (std::ranges::any_of(need.wanted, in(absent))) {
        absent.insert(need.trigger), changed = true;
      } else if (open == nullptr) {
        open = &need;
      }
    }
  }
  if (open == nullptr) return 1;
  auto with = present, without = absent;
  with.insert(open->wanted.begin(), open->wanted.end()), without.insert(open->trigger);
  const int64_t ways = ways_of_needs(needs, std::move(with), absent, most, work);
  return ways > most ? ways
                     : ways + ways_of_needs(needs, std::move(present), std::move(without), most - ways, work);
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
    SLUICE_TRY(add_needs(s, keyword, m, todo, decisions));
    const auto schemas = static_cast<size_t>(
        std::ranges::count_if(*all, [](const Json& wanted) { return !is_names(wanted); }));
    if (schemas > kSchemasMax) {
      SLUICE_TRY(check(*document_->only(s, {keyword}), m));
      continue;
    }
    // The member is absent, or it is present and its schema holds.
    for (const auto& [name, wanted] : all->items()) {
      if (is_names(wanted)) continue;
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

const std::optional<std::vector<Need>>& SchemaMerger::needs_of(const Json& s, const std::string& keyword) {
  const auto [found, is_new] = needs_.try_emplace({&s, keyword});
  if (!is_new) return found->second;
  std::vector<Need> needs;
  for (const auto& [name, wanted] : s.at(keyword).items())
    if (is_names(wanted)) needs.push_back({{&s, keyword + "/" + name}, name, names_of(wanted)});
  const int64_t count = std::ssize(needs), ways_max = count > 0 ? kLooksMax / count : 1;
  if (count <= kNeedsMax && ways_of_needs(needs, {}, {}, ways_max, work_) <= ways_max)
    found->second = std::move(needs);
  return found->second;
}

// Adds the dependencies whose values are names.
Status SchemaMerger::add_needs(const Json& s, const std::string& keyword, Merged* m, Schemas* todo,
                               const Decisions& decisions) {
  const auto& needs = needs_of(s, keyword);
  if (!needs) return check(*document_->only(s, {keyword}), m);
  for (const Need& need : *needs) {
    if (!work_->spend(steps_of(need))) return schema_too_long();
    const auto made = decisions.find(need.key);
    if (made == decisions.end())
      m->needs.push_back(&need);
    else
      todo->insert(todo->end(), made->second.schemas.begin(), made->second.schemas.end());
  }
  return {};
}

void SchemaMerger::settle_needs(Merged* m, Schemas* todo) {
  if ((m->types & kObject) == 0 || m->needs.empty()) return;
  std::set<std::string> required(m->required.begin(), m->required.end());
  const auto is_required = [&](const std::string& name) { return required.contains(name); };
  const auto forbidden = [&](const std::string& name) { return is_forbidden(*m, name); };
  const Need* open = nullptr;
  for (bool changed = true; changed;) {
    changed = false, open = nullptr;
    for (const Need* need : m->needs) {
      if (!work_->spend(steps_of(*need))) return;
      if (std::ranges::all_of(need->wanted, is_required) || forbidden(need->trigger)) continue;
      if (is_required(need->trigger)) {
        for (const std::string& name : need->wanted)
          if (required.insert(name).second) m->required.push_back(name);
        changed = true;
      } else if (std::ranges::any_of(need->wanted, forbidden)) {
        todo->push_back(absent(need->trigger));
        return;
      } else if (open == nullptr) {
        open = need;
      }
    }
  }
  if (open == nullptr || m->pending) return;
  auto& alternatives = dependencies_[open->key];
  if (alternatives.empty())
    alternatives = {{{document_->keep(Json{{"required", open->wanted}})}}, {{absent(open->trigger)}}};
  m->pending.emplace(open->key, alternatives);
}

}  // namespace sluice
