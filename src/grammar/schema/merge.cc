#include "grammar/schema/merge.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_set>

#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {
namespace {

constexpr int64_t kWaysMax = 512;  // maximum combinations of choices at one place of a schema
constexpr int kImpossibleDepthMax = 3;
constexpr size_t kSomeMax = 3;  // each doubles the states of an object

}  // namespace

uint8_t json_type(const std::string& name) {
  constexpr std::pair<const char*, uint8_t> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"number", kNumber}, {"integer", kNumber},
      {"string", kString}, {"array", kArray},     {"object", kObject}};
  for (const auto& [text, bit] : kNames)
    if (name == text) return bit;
  return 0;
}

Status wrong_keyword(const char* key, const char* wanted, const Json& found) {
  return invalid("JSON schema: " + std::string(key) + ": wanted " + wanted + ", found " + described(found));
}

namespace {

// A size of at least 0; `otherwise` if absent.
Result<int64_t> size_at(const Json& schema, const char* key, int64_t otherwise) {
  const Json* value = member(schema, key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || value->get<double>() < 0 ||
      value->get<double>() != std::floor(value->get<double>()))
    return wrong_keyword(key, "a whole number", *value);
  return static_cast<int64_t>(std::min(value->get<double>(), 2e9));
}

// Removes repeated names and keeps each first occurrence.
void keep_first(std::vector<std::string>* names) {
  std::unordered_set<std::string> seen;
  std::erase_if(*names, [&](const std::string& name) { return !seen.insert(name).second; });
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
  if (!work_->spend(64)) return schema_too_long();
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
  std::map<const Json*, const Json*> parent;  // the schema that added it
  while (!m.never) {
    if (todo.empty()) SLUICE_TRY(settle_needs(&m, &todo));
    if (todo.empty()) break;
    const Json* schema = todo.back();
    todo.pop_back();
    if (!work_->spend(8)) return schema_too_long();
    if (!seen.insert(schema).second) continue;
    if (schema->is_boolean()) {
      m.never |= !schema->get<bool>();
      continue;
    }
    if (!schema->is_object())
      return invalid("JSON schema: wanted an object, true or false as a schema, found " + described(*schema));
    const size_t known = todo.size();
    SLUICE_TRY(add(*schema, &m, &todo, decisions, depth));
    for (size_t i = known; i < todo.size(); ++i) {
      // A schema that reaches itself again for the same value refers to itself without end.
      for (const Json* at = schema; at != nullptr; at = parent.contains(at) ? parent.at(at) : nullptr) {
        if (!work_->spend(4)) return schema_too_long();
        m.never |= at == todo[i];
      }
      parent.try_emplace(todo[i], schema);
    }
  }
  // A value cannot satisfy a schema and fail an equal one.
  if (!m.nevers.empty() && !m.never) {
    std::set<size_t> held;
    for (const Json* schema : seen) held.insert(content_of(schema));
    m.never = std::ranges::any_of(m.nevers, [&](const Json* s) { return held.contains(content_of(s)); });
  }
  if (m.number.integer && m.number.fraction) m.types &= static_cast<uint8_t>(~kNumber);
  keep_first(&m.required);
  std::sort(m.effective.begin(), m.effective.end());
  return m;
}

// The keywords of one schema, which are merged into `m`.
struct SchemaMerger::Keywords {
  const Json& schema;
  Merged* m;
  bool constrains = false;  // some keyword constrains the value

  // The value of the keyword `key`, which constrains `type`; null: the schema does not have the keyword.
  const Json* about(const char* key, uint8_t type) {
    const Json* value = member(schema, key);
    if (value != nullptr) constrains = true, m->about |= type;
    return value;
  }
  Status sizes(const char* low, const char* high, uint8_t type, int64_t* least, int64_t* most) {
    if (about(low, type) != nullptr || schema.contains(high)) {
      (void)about(high, type);
      const auto a = size_at(schema, low, 0), b = size_at(schema, high, -1);
      if (!a.ok() || !b.ok()) return a.ok() ? b.status() : a.status();
      raise(least, a.value());
      lower(most, b.value());
    }
    return {};
  }
};

Status SchemaMerger::add_values(Keywords* keys) {
  const Json& s = keys->schema;
  Merged* const m = keys->m;
  if (const Json* type = member(s, "type")) {
    keys->constrains = m->typed = true;
    uint8_t types = 0;
    bool whole = false, fraction = false;
    const auto one = [&](const Json& name) -> Status {
      if (!name.is_string() || json_type(name.get<std::string>()) == 0)
        return wrong_keyword("type", "null, boolean, integer, number, string, array or object", name);
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
  if (const Json* list = member(s, "enum")) {
    if (!list->is_array()) return wrong_keyword("enum", "an array", *list);
    keys->constrains = true;
    m->values.push_back(values_in(*list));
  }
  if (const Json* value = member(s, "const")) keys->constrains = true, m->values.emplace_back(value, 1);
  return {};
}

Status SchemaMerger::add_numbers(Keywords* keys) {
  const Json& s = keys->schema;
  Merged* const m = keys->m;
  // In draft 4, "exclusiveMinimum" is a boolean. Checkers read a number there as true.
  const bool draft4 = document_->draft() == 4;
  for (const bool low : {true, false}) {
    const char *key = low ? "minimum" : "maximum",
               *strict_key = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const auto bound = [&](const Json& value, bool excluded, const char* name) -> Status {
      const auto d = Decimal::of(value);
      if (!d) return wrong_keyword(name, "a number", value);
      auto& known = low ? m->number.least : m->number.most;
      bool& known_excluded = low ? m->number.min_excluded : m->number.max_excluded;
      const int order = known ? compare(*d, *known) : low ? 1 : -1;
      if (low ? order > 0 : order < 0) known = d, known_excluded = excluded;
      if (order == 0) known_excluded |= excluded;
      return {};
    };
    const Json* strict = keys->about(strict_key, kNumber);
    if (strict != nullptr && !strict->is_boolean()) SLUICE_TRY(bound(*strict, true, strict_key));
    if (const Json* value = keys->about(key, kNumber))
      SLUICE_TRY(bound(*value,
                       strict != nullptr && (*strict == Json(true) || (draft4 && strict->is_number())), key));
  }
  if (const Json* multiple = keys->about("multipleOf", kNumber)) {
    const auto d = Decimal::of(*multiple);
    if (!d || d->negative || d->is_zero()) return wrong_keyword("multipleOf", "a number above 0", *multiple);
    m->number.multiples.push_back(*d);
    // Many checkers divide doubles, and for them 4.6 is not a multiple of 0.01.
    if (!d->is_double()) SLUICE_TRY(check(*document_->only(s, {"multipleOf"}), m));
  }
  return {};
}

Status SchemaMerger::add_strings(Keywords* keys) {
  const Json& s = keys->schema;
  Merged* const m = keys->m;
  SLUICE_TRY(keys->sizes("minLength", "maxLength", kString, &m->min_length, &m->max_length));
  if (const Json* pattern = keys->about("pattern", kString)) {
    if (!pattern->is_string()) return wrong_keyword("pattern", "a string", *pattern);
    m->patterns.push_back(pattern->get<std::string>());
  }
  if (const Json* format = member(s, "format");
      format != nullptr && format->is_string() && format_values(format->get<std::string>()) != nullptr) {
    (void)keys->about("format", kString);
    m->formats.push_back(format->get<std::string>());
  }
  return {};
}

Status SchemaMerger::add_arrays(Keywords* keys) {
  Merged* const m = keys->m;
  SLUICE_TRY(keys->sizes("minItems", "maxItems", kArray, &m->min_items, &m->max_items));
  bool elements = false;
  for (const char* key : {"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"})
    elements |= keys->about(key, kArray) != nullptr;
  if (elements) m->arrays.push_back(&keys->schema);
  if (const Json* unique = keys->about("uniqueItems", kArray)) m->distinct |= *unique == Json(true);
  return {};
}

Status SchemaMerger::add_objects(Keywords* keys) {
  Merged* const m = keys->m;
  SLUICE_TRY(keys->sizes("minProperties", "maxProperties", kObject, &m->min_members, &m->max_members));
  bool members = false;
  for (const char* key : {"properties", "patternProperties", "additionalProperties", "propertyNames",
                          "unevaluatedProperties"}) {
    const Json* value = keys->about(key, kObject);
    members |= value != nullptr;
    const bool map = std::string_view(key) == "properties" || std::string_view(key) == "patternProperties";
    if (value != nullptr && map && !value->is_object()) return wrong_keyword(key, "an object", *value);
  }
  if (const Json* required = keys->about("required", kObject)) {
    if (!required->is_array()) return wrong_keyword("required", "an array of names", *required);
    if (!work_->spend(std::ssize(*required))) return schema_too_long();
    for (const Json& name : *required) {
      if (!name.is_string()) return wrong_keyword("required", "an array of names", name);
      m->required.push_back(name.get<std::string>());
    }
  }
  if (members) m->objects.push_back(&keys->schema);
  if (const Json* some = keys->about(kSomeMember, kObject)) {
    if (m->some.size() < kSomeMax)
      m->some.push_back(some);
    else
      SLUICE_TRY(check(*document_->only(keys->schema, {kSomeMember}), m));
  }
  return {};
}

Status SchemaMerger::add_references(const Json& s, Schemas* todo) {
  for (const char* key : {"$ref", "$dynamicRef", "$recursiveRef"})
    if (const Json* reference = member(s, key)) {
      if (!reference->is_string()) return wrong_keyword(key, "a string", *reference);
      const auto name = reference->get<std::string>();
      if (std::string_view(key) == "$dynamicRef" && name.find('#') != std::string::npos &&
          document_->anchors(name.substr(name.find('#') + 1)) > 1)
        return invalid(
            "JSON schema: $dynamicRef: wanted one $dynamicAnchor of that name, found several, which is not "
            "supported");
      const auto target = document_->target(reference->get<std::string>());
      if (!target.ok()) return {target.status().code, "JSON schema: " + target.status().message};
      todo->push_back(target.value());
    }
  return {};
}

Status SchemaMerger::add(const Json& s, Merged* m, Schemas* todo, const Decisions& decisions, int depth) {
  for (const char* key : {"disallow", "extends", "divisibleBy"})
    if (s.contains(key))
      return invalid("JSON schema: " + std::string(key) +
                     ": wanted a keyword of the supported drafts, found one of an older draft");
  Keywords keys{s, m};
  SLUICE_TRY(add_values(&keys));
  SLUICE_TRY(add_numbers(&keys));
  SLUICE_TRY(add_strings(&keys));
  SLUICE_TRY(add_arrays(&keys));
  SLUICE_TRY(add_objects(&keys));
  SLUICE_TRY(add_references(s, todo));
  if (keys.constrains) m->effective.push_back(&s);
  return add_choices(s, m, todo, decisions, depth);
}

bool SchemaMerger::excludes(const Merged& m, const Json& value) {
  return std::any_of(m.excluded.begin(), m.excluded.end(), [&](const Json* excluded) {
    const Json *one = member(*excluded, "const"), *list = member(*excluded, "enum");
    return (one != nullptr && same_value(*one, value)) ||
           (list != nullptr && list->is_array() && document_->lists(values_in(*list), value, work_));
  });
}

size_t SchemaMerger::content_of(const Json* schema) {
  const auto [found, is_new] = contents_.try_emplace(schema, 0);
  if (!is_new) return found->second;
  std::string text = schema->dump(-1, ' ', false, Json::error_handler_t::replace);
  (void)work_->spend(std::ssize(text) / 4);
  return found->second = texts_.try_emplace(std::move(text), texts_.size()).first->second;
}

bool SchemaMerger::lacks_member(const Merged& m, const Json& some, int depth) {
  const auto closed = std::ranges::find_if(m.objects, [](const Json* object) {
    const Json* others = member(*object, "additionalProperties");
    return others != nullptr && *others == Json(false) && !object->contains("patternProperties");
  });
  if (closed == m.objects.end()) return false;
  const Json &names = some.at("names"), *properties = member(**closed, "properties");
  if (properties == nullptr) return true;
  if (!prepare_validation(*document_, names, work_).ok()) return false;
  for (const auto& [name, inside] : properties->items())
    if (is_valid(*document_, Json(name), names, Bound::kOuter, work_) &&
        !impossible({&inside, &some.at("value")}, depth + 1))
      return false;
  return true;
}

// Whether a quick test proves that no value satisfies `m`.
bool SchemaMerger::contradicts(const Merged& m, int depth) {
  if (m.types == 0) return true;
  if (!m.values.empty()) {
    // Some value must be in all lists and have an allowed type.
    const auto fits = [&](const Json& value) {
      const uint8_t type = value.is_number() ? uint8_t{kNumber} : json_type(value.type_name());
      if ((m.types & type) == 0) return false;
      const bool in_others = std::all_of(m.values.begin() + 1, m.values.end(), [&](const auto& list) {
        return document_->lists(list, value, work_);
      });
      return in_others && !excludes(m, value);
    };
    const bool none = std::none_of(m.values[0].begin(), m.values[0].end(), fits);
    if (none && !work_->over()) return true;
  }
  if (m.types == kNumber && m.number.least && m.number.most) {
    const int order = compare(*m.number.least, *m.number.most);
    if (order > 0 || (order == 0 && (m.number.min_excluded || m.number.max_excluded))) return true;
  }
  if (m.types == kString && m.max_length >= 0 && m.min_length > m.max_length) return true;
  if (m.types == kArray && m.max_items >= 0 && m.min_items > m.max_items) return true;
  if (m.types == kArray && m.distinct && m.repeated) return true;
  if (m.types == kArray && depth <= kImpossibleDepthMax)
    for (const Json* some : m.arrays) {
      const Json *wanted = member(*some, "contains"), *least = member(*some, "minContains");
      if (wanted == nullptr || (least != nullptr && *least == Json(0))) continue;
      for (const Json* all : m.arrays)
        if (const Json* items = member(*all, "items"); items != nullptr && !items->is_array() &&
                                                       !all->contains("prefixItems") &&
                                                       impossible({items, wanted}, depth + 1))
          return true;
    }
  if (m.types != kObject) return false;
  if (m.max_members >= 0 && std::ssize(m.required) > m.max_members) return true;
  if (depth > kImpossibleDepthMax) return false;
  for (const std::string& name : m.required) {
    Schemas inside;
    for (const Json* object : m.objects) {
      const Json* properties = member(*object, "properties");
      if (properties != nullptr && properties->contains(name)) {
        inside.push_back(&properties->at(name));
      } else if (const Json* others = member(*object, "additionalProperties");
                 others != nullptr && *others == Json(false) && !object->contains("patternProperties")) {
        return true;
      }
    }
    if (!inside.empty() && impossible(inside, depth + 1)) return true;
  }
  return std::ranges::any_of(m.some, [&](const Json* some) { return lacks_member(m, *some, depth); });
}

uint8_t SchemaMerger::possible_types(const Schemas& schemas, int depth) {
  if (depth > kImpossibleDepthMax) return kAnyType;
  std::vector<Merged> found;
  const int64_t before = ways_;
  const Status status = ways(schemas, {}, depth, &found);
  ways_ = before;
  if (!status.ok()) return kAnyType;
  uint8_t out = 0;
  for (const Merged& m : found) out |= m.types;
  return out;
}

bool SchemaMerger::impossible(const Schemas& schemas, int depth) {
  return possible_types(schemas, depth) == 0;
}

}  // namespace sluice
