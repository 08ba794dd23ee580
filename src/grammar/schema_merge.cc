#include "grammar/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/printable.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr int64_t kWaysMax = 512;  // of one place of a schema
constexpr int kImpossibleDepthMax = 3;

std::string shown(const std::string& text) { return "'" + printable(valid_utf8(text.substr(0, 80))) + "'"; }

Status too_long() { return invalid("JSON schema: takes too long to compile"); }

const Json* get(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found != schema.end() ? &*found : nullptr;
}

}  // namespace

uint8_t json_type(const std::string& name) {
  constexpr std::pair<const char*, uint8_t> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  for (const auto& [text, bit] : kNames)
    if (name == text) return bit;
  return 0;
}

namespace {

Status wrong(const char* key, const char* wanted, const Json& found) {
  std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  return invalid("JSON schema: " + std::string(key) + ": wanted " + wanted + ", found " + shown(text));
}

// A size, at least 0; absent: `otherwise`.
Result<int64_t> size_at(const Json& schema, const char* key, int64_t otherwise) {
  const Json* value = get(schema, key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || value->get<double>() < 0 ||
      value->get<double>() != std::floor(value->get<double>()))
    return wrong(key, "a whole number", *value);
  return static_cast<int64_t>(std::min(value->get<double>(), 2e9));
}

void raise(int64_t* least, int64_t value) { *least = std::max(*least, value); }
void lower(int64_t* most, int64_t value) {
  *most = *most < 0 ? value : value < 0 ? *most : std::min(*most, value);
}

}  // namespace

Status SchemaMerger::ways(const Schemas& schemas, std::vector<Merged>* out) {
  ways_ = 0;
  return ways(schemas, {}, 0, out);
}

Status SchemaMerger::ways(const Schemas& schemas, const Decisions& decisions, int depth,
                          std::vector<Merged>* out) {
  if (!work_->spend(64)) return too_long();
  auto merged = merge(schemas, decisions, depth);
  if (!merged.ok()) return merged.status();
  Merged& m = merged.value();
  if (m.never || contradicts(m, depth)) return {};
  if (!m.pending) {
    if (++ways_ > kWaysMax)
      return invalid("JSON schema: wanted at most " + std::to_string(kWaysMax) +
                     " combinations of anyOf, oneOf, if and not, found more");
    out->push_back(std::move(m));
    return {};
  }
  for (const Alternative& alternative : m.pending->second) {
    Decisions more = decisions;
    more[m.pending->first] = alternative;
    SLUICE_TRY(ways(schemas, more, depth, out));
  }
  return {};
}

Result<Merged> SchemaMerger::merge(const Schemas& schemas, const Decisions& decisions, int depth) {
  Merged m;
  Schemas todo(schemas.rbegin(), schemas.rend());
  std::set<const Json*> seen;
  std::map<const Json*, const Json*> parent;  // the schema that led to it
  while (!todo.empty() && !m.never) {
    const Json* schema = todo.back();
    todo.pop_back();
    if (!work_->spend(8)) return too_long();
    if (!seen.insert(schema).second) continue;
    if (schema->is_boolean()) {
      m.never |= !schema->get<bool>();
      continue;
    }
    if (!schema->is_object())
      return invalid("JSON schema: wanted an object, true or false as a schema, found " +
                     shown(schema->dump(-1, ' ', false, Json::error_handler_t::replace)));
    const size_t known = todo.size();
    SLUICE_TRY(add(*schema, &m, &todo, decisions, depth));
    for (size_t i = known; i < todo.size(); ++i) {
      // A way that leads back to where it came from, without a value in between, never ends.
      for (const Json* at = schema; at != nullptr; at = parent.contains(at) ? parent.at(at) : nullptr)
        m.never |= at == todo[i];
      parent.try_emplace(todo[i], schema);
    }
  }
  std::sort(m.effective.begin(), m.effective.end());
  return m;
}

Status SchemaMerger::add(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions, int depth) {
  for (const char* key : {"disallow", "extends", "divisibleBy"})
    if (s.contains(key))
      return invalid("JSON schema: " + std::string(key) +
                     ": a keyword of an old draft, which is not supported");
  bool says = false;
  const auto about = [&](const char* key, uint8_t type) -> const Json* {
    const Json* value = get(s, key);
    if (value != nullptr) says = true, m->about |= type;
    return value;
  };
  if (const Json* type = get(s, "type")) {
    says = m->typed = true;
    uint8_t types = 0;
    bool whole = false, fraction = false;
    const auto one = [&](const Json& name) -> Status {
      if (!name.is_string() || json_type(name.get<std::string>()) == 0)
        return wrong("type", "null, boolean, integer, number, string, array or object", name);
      types |= json_type(name.get<std::string>());
      whole |= name == Json("integer");
      fraction |= name == Json("number");
      return {};
    };
    if (type->is_array())
      for (const Json& name : *type) SLUICE_TRY(one(name));
    else
      SLUICE_TRY(one(*type));
    m->types &= types;
    m->number.integer |= whole && !fraction;
  }
  if (const Json* list = get(s, "enum")) {
    if (!list->is_array()) return wrong("enum", "an array", *list);
    says = true;
    m->values.emplace_back(list->begin(), list->end());
  }
  if (const Json* value = get(s, "const")) says = true, m->values.push_back({*value});
  // Numbers.
  for (const bool low : {true, false}) {
    const char *key = low ? "minimum" : "maximum",
               *strict_key = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const auto bound = [&](const Json& value, bool excluded, const char* name) -> Status {
      const auto d = Decimal::of(value);
      if (!d) return wrong(name, "a number", value);
      auto& known = low ? m->number.least : m->number.most;
      bool& known_excluded = low ? m->number.least_excluded : m->number.most_excluded;
      const int order = known ? compare(*d, *known) : low ? 1 : -1;
      if (low ? order > 0 : order < 0) known = d, known_excluded = excluded;
      if (order == 0) known_excluded |= excluded;
      return {};
    };
    const Json* strict = about(strict_key, kNumber);
    if (strict != nullptr && !strict->is_boolean()) SLUICE_TRY(bound(*strict, true, strict_key));
    if (const Json* value = about(key, kNumber))
      SLUICE_TRY(bound(*value, strict != nullptr && *strict == Json(true), key));
  }
  if (const Json* multiple = about("multipleOf", kNumber)) {
    const auto d = Decimal::of(*multiple);
    if (!d || d->negative || d->is_zero()) return wrong("multipleOf", "a number above 0", *multiple);
    m->number.multiples.push_back(*d);
  }
  // Strings.
  const auto sizes = [&](const char* low, const char* high, uint8_t type, int64_t* least,
                         int64_t* most) -> Status {
    if (about(low, type) != nullptr || s.contains(high)) {
      (void)about(high, type);
      const auto a = size_at(s, low, 0), b = size_at(s, high, -1);
      if (!a.ok() || !b.ok()) return a.ok() ? b.status() : a.status();
      raise(least, a.value());
      lower(most, b.value());
    }
    return {};
  };
  SLUICE_TRY(sizes("minLength", "maxLength", kString, &m->least_length, &m->most_length));
  if (const Json* pattern = about("pattern", kString)) {
    if (!pattern->is_string()) return wrong("pattern", "a string", *pattern);
    m->patterns.push_back(pattern->get<std::string>());
  }
  if (const Json* format = get(s, "format");
      format != nullptr && format->is_string() && format_values(format->get<std::string>()) != nullptr) {
    (void)about("format", kString);
    m->formats.push_back(format->get<std::string>());
  }
  // Arrays.
  SLUICE_TRY(sizes("minItems", "maxItems", kArray, &m->least_items, &m->most_items));
  bool elements = false;
  for (const char* key : {"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"})
    elements |= about(key, kArray) != nullptr;
  if (elements) m->arrays.push_back(&s);
  if (const Json* unique = about("uniqueItems", kArray)) m->distinct |= *unique == Json(true);
  // Objects.
  SLUICE_TRY(sizes("minProperties", "maxProperties", kObject, &m->least_members, &m->most_members));
  bool members = false;
  for (const char* key : {"properties", "patternProperties", "additionalProperties", "propertyNames",
                          "unevaluatedProperties"}) {
    const Json* value = about(key, kObject);
    members |= value != nullptr;
    const bool map = std::string_view(key) == "properties" || std::string_view(key) == "patternProperties";
    if (value != nullptr && map && !value->is_object()) return wrong(key, "an object", *value);
  }
  if (const Json* required = about("required", kObject)) {
    if (!required->is_array()) return wrong("required", "an array of names", *required);
    for (const Json& name : *required) {
      if (!name.is_string()) return wrong("required", "an array of names", name);
      const auto text = name.get<std::string>();
      if (std::find(m->required.begin(), m->required.end(), text) == m->required.end())
        m->required.push_back(text);
    }
  }
  if (members) m->objects.push_back(&s);
  for (const char* key : {"$ref", "$dynamicRef", "$recursiveRef"})
    if (const Json* reference = get(s, key)) {
      if (!reference->is_string()) return wrong(key, "a string", *reference);
      const auto name = reference->get<std::string>();
      if (std::string_view(key) == "$dynamicRef" && name.starts_with('#') &&
          document_->anchors(name.substr(1)) > 1)
        return invalid(
            "JSON schema: $dynamicRef: wanted one $dynamicAnchor of that name, found several, which is not "
            "supported");
      const auto target = document_->target(s, reference->get<std::string>());
      if (!target.ok()) return {target.status().code, "JSON schema: " + target.status().message};
      todo->push_back(target.value());
    }
  if (says) m->effective.push_back(&s);
  return add_choices(s, m, todo, decisions, depth);
}

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
  if (const Json* all = get(s, "allOf")) {
    if (!all->is_array()) return wrong("allOf", "an array of schemas", *all);
    for (auto it = all->rbegin(); it != all->rend(); ++it) todo->push_back(&*it);
  }
  if (const Json* any = get(s, "anyOf")) {
    if (!any->is_array()) return wrong("anyOf", "an array of schemas", *any);
    std::vector<Alternative> alternatives;
    for (const Json& one : *any) alternatives.push_back({{&one}});
    SLUICE_TRY(choose({&s, "anyOf"}, std::move(alternatives), m, todo, decisions));
  }
  if (s.contains("oneOf")) SLUICE_TRY(add_one_of(s, m, todo, decisions, depth));
  if (s.contains("not")) SLUICE_TRY(add_not(s, m, todo, decisions));
  if (s.contains("if") && (s.contains("then") || s.contains("else")))
    SLUICE_TRY(add_condition(s, m, todo, decisions));
  return add_dependencies(s, m, todo, decisions);
}

// Where two alternatives may hold at once, the value is asked in the end.
Status SchemaMerger::add_one_of(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions,
                                int depth) {
  const Json& list = s.at("oneOf");
  if (!list.is_array()) return wrong("oneOf", "an array of schemas", list);
  auto found = one_ofs_.find(&s);
  if (found == one_ofs_.end()) {
    std::vector<Alternative> alternatives;
    constexpr size_t kComparedMax = 40;
    // What stands beside may tell alternatives apart, for example where it says the type.
    Json beside = Json::object();
    for (const char* key : {"type", "required", "properties"})
      if (const Json* value = get(s, key)) beside[key] = *value;
    const Json* base = document_->keep(std::move(beside));
    for (const Json& one : list) {
      bool apart = list.size() <= kComparedMax && depth <= kImpossibleDepthMax;
      for (size_t i = 0; apart && i < list.size(); ++i)
        apart = &list[i] == &one || impossible({base, &one, &list[i]}, depth + 1);
      alternatives.push_back({{&one}, apart ? Schemas{} : Schemas{document_->only(s, {"oneOf"})}});
    }
    found = one_ofs_.emplace(&s, std::move(alternatives)).first;
  }
  return choose({&s, "oneOf"}, found->second, m, todo, decisions);
}

Status SchemaMerger::add_not(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions) {
  const Json& never = s.at("not");
  if (never.is_object() && never.size() == 1 &&
      (never.contains("enum") || never.contains("const") || never.contains("pattern"))) {
    if (never.contains("pattern")) SLUICE_TRY(prepare_validation(*document_, never, work_));
    m->excluded.push_back(&never);
    m->effective.push_back(&s);
    return {};
  }
  auto found = negations_.find(&never);
  if (found == negations_.end()) {
    std::optional<std::vector<Alternative>> alternatives;
    if (auto schemas = negated(never, 0)) {
      alternatives.emplace();
      for (Json& one : *schemas) alternatives->push_back({{document_->keep(std::move(one))}});
    }
    found = negations_.emplace(&never, std::move(alternatives)).first;
  }
  if (found->second) return choose({&s, "not"}, *found->second, m, todo, decisions);
  return check(*document_->only(s, {"not"}), m);
}

Status SchemaMerger::add_condition(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions) {
  const Json& condition = s.at("if");
  const Json *then = get(s, "then"), *otherwise = get(s, "else");
  auto found = negations_.find(&condition);
  if (found == negations_.end()) {
    std::vector<Alternative> alternatives{{{&condition}}};
    if (then != nullptr) alternatives[0].schemas.push_back(then);
    if (auto schemas = negated(condition, 0)) {
      for (Json& one : *schemas) {
        alternatives.push_back({{document_->keep(std::move(one))}});
        if (otherwise != nullptr) alternatives.back().schemas.push_back(otherwise);
      }
    } else {
      alternatives.push_back({.schemas = {}, .checks = {document_->only(s, {"if", "then", "else"})}});
      if (otherwise != nullptr) alternatives.back().schemas.push_back(otherwise);
    }
    found = negations_.emplace(&condition, std::move(alternatives)).first;
  }
  return choose({&s, "if"}, *found->second, m, todo, decisions);
}

// Of each name either it is absent, or what depends on it holds.
Status SchemaMerger::add_dependencies(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions) {
  for (const char* keyword : {"dependentRequired", "dependencies", "dependentSchemas"}) {
    const Json* all = get(s, keyword);
    if (all == nullptr) continue;
    if (!all->is_object()) return wrong(keyword, "an object", *all);
    m->about |= kObject;
    if (all->size() > 6) {
      SLUICE_TRY(check(s, m));
      continue;
    }
    for (const auto& [name, wanted] : all->items()) {
      auto found = one_ofs_.find(&wanted);
      if (found == one_ofs_.end()) {
        const Json* absent = document_->keep(Json{{"properties", Json{{name, false}}}});
        const Json* present = document_->keep(Json{{"required", Json::array({name})}});
        const Json* holds =
            wanted.is_array() || wanted.is_string()
                ? document_->keep(Json{{"required", wanted.is_array() ? wanted : Json::array({wanted})}})
                : &wanted;
        found = one_ofs_.emplace(&wanted, std::vector<Alternative>{{{present, holds}}, {{absent}}}).first;
      }
      SLUICE_TRY(choose({&s, std::string(keyword) + "/" + name}, found->second, m, todo, decisions));
    }
  }
  return {};
}

// That nothing satisfies `m`, as far as a quick look tells.
bool SchemaMerger::contradicts(const Merged& m, int depth) {
  if (m.types == 0) return true;
  if (!m.values.empty()) {
    // Some value must be in all lists and have one of the types.
    const auto fits = [&](const Json& value) {
      const uint8_t type = value.is_number() ? uint8_t{kNumber} : json_type(value.type_name());
      if ((m.types & type) == 0) return false;
      for (const auto& list : m.values)
        if (std::find(list.begin(), list.end(), value) == list.end()) return false;
      for (const Json* excluded : m.excluded)
        if ((excluded->contains("const") && excluded->at("const") == value) ||
            (excluded->contains("enum") && std::find(excluded->at("enum").begin(), excluded->at("enum").end(),
                                                     value) != excluded->at("enum").end()))
          return false;
      return true;
    };
    if (std::none_of(m.values[0].begin(), m.values[0].end(), fits)) return true;
  }
  if (m.types == kNumber && m.number.least && m.number.most) {
    const int order = compare(*m.number.least, *m.number.most);
    if (order > 0 || (order == 0 && (m.number.least_excluded || m.number.most_excluded))) return true;
  }
  if (m.types == kString && m.most_length >= 0 && m.least_length > m.most_length) return true;
  if (m.types == kArray && m.most_items >= 0 && m.least_items > m.most_items) return true;
  if (m.types != kObject) return false;
  if (m.most_members >= 0 && std::ssize(m.required) > m.most_members) return true;
  if (depth > kImpossibleDepthMax) return false;
  for (const std::string& name : m.required) {
    Schemas inside;
    for (const Json* object : m.objects) {
      const Json* properties = get(*object, "properties");
      if (properties != nullptr && properties->contains(name)) {
        inside.push_back(&properties->at(name));
      } else if (const Json* others = get(*object, "additionalProperties");
                 others != nullptr && *others == Json(false) && !object->contains("patternProperties")) {
        return true;
      }
    }
    if (!inside.empty() && impossible(inside, depth + 1)) return true;
  }
  return false;
}

bool SchemaMerger::impossible(const Schemas& schemas, int depth) {
  if (depth > kImpossibleDepthMax) return false;
  std::vector<Merged> found;
  const int64_t before = ways_;
  const Status status = ways(schemas, {}, depth, &found);
  ways_ = before;
  return status.ok() && found.empty();
}

}  // namespace sluice
