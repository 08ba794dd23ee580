// Dependencies between members of an object: "dependentRequired", "dependentSchemas" and "dependencies".
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "grammar/schema/merge.h"

namespace sluice {
namespace {

// If choices make more ways than this, the whole value is checked at its end instead.
constexpr int64_t kWaysOfNeedsMax = 64;
constexpr size_t kNeedsMax = 200;
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

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

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
                      std::set<std::string> absent, int64_t most) {
  const auto in = [](const std::set<std::string>& names) {
    return [&](const std::string& name) { return names.contains(name); };
  };
  const Need* open = nullptr;
  for (bool changed = true; changed;) {
    changed = false, open = nullptr;
    for (const Need& need : needs) {
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
  const int64_t ways = ways_of_needs(needs, std::move(with), absent, most);
  return ways > most ? ways
                     : ways + ways_of_needs(needs, std::move(present), std::move(without), most - ways);
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

// Adds the dependencies whose values are names.
Status SchemaMerger::add_needs(const Json& s, const std::string& keyword, Merged* m, Schemas* todo,
                               const Decisions& decisions) {
  std::vector<Need> needs;
  for (const auto& [name, wanted] : s.at(keyword).items())
    if (is_names(wanted)) needs.push_back({{&s, keyword + "/" + name}, name, names_of(wanted)});
  if (needs.empty()) return {};
  if (needs.size() > kNeedsMax || !work_->spend(std::ssize(needs) * std::ssize(needs)) ||
      ways_of_needs(needs, {}, {}, kWaysOfNeedsMax) > kWaysOfNeedsMax)
    return check(*document_->only(s, {keyword.c_str()}), m);
  for (Need& need : needs) {
    const auto made = decisions.find(need.key);
    if (made == decisions.end())
      m->needs.push_back(std::move(need));
    else
      todo->insert(todo->end(), made->second.schemas.begin(), made->second.schemas.end());
  }
  return {};
}

void SchemaMerger::settle_needs(Merged* m, Schemas* todo) {
  if ((m->types & kObject) == 0) return;
  const Need* open = nullptr;
  for (bool changed = true; changed;) {
    changed = false, open = nullptr;
    for (const Need& need : m->needs) {
      const auto is_required = [&](const std::string& name) { return has(m->required, name); };
      const auto forbidden = [&](const std::string& name) { return is_forbidden(*m, name); };
      if (std::ranges::all_of(need.wanted, is_required) || forbidden(need.trigger)) continue;
      if (is_required(need.trigger)) {
        m->required.insert(m->required.end(), need.wanted.begin(), need.wanted.end()), changed = true;
      } else if (std::ranges::any_of(need.wanted, forbidden)) {
        todo->push_back(absent(need.trigger));
        return;
      } else if (open == nullptr) {
        open = &need;
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
