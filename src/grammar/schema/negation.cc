// Negates a schema: builds schemas such that a value of any of them fails the given schema.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/schema/merge.h"

namespace sluice {
namespace {

constexpr size_t kNegationsMax = 32;

// Keywords of schemas whose negations have many ways.
constexpr const char* kParts[] = {"$ref", "properties", "items", "allOf", "anyOf", "oneOf"};
constexpr const char* kTypeNames[] = {"null", "boolean", "number", "string", "array", "object"};

// Whether only "properties" and "patternProperties" of a schema evaluate members, so that "unevaluatedProperties" is about the same members as
// "additionalProperties" would be.
bool evaluates_alone(const Json& schema) {
  static constexpr const char* kOthers[] = {
      "additionalProperties", "allOf",         "anyOf",           "oneOf", "if", "$ref",
      "$dynamicRef",          "$recursiveRef", "dependentSchemas"};
  return std::ranges::none_of(kOthers, [&](const char* key) { return schema.contains(key); });
}

// The types of values for which a keyword can fail; 0: it never fails.
uint8_t types_of_keyword(const std::string& key) {
  static const std::pair<uint8_t, std::set<std::string>> kAll[] = {
      {kNumber, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"}},
      {kString, {"minLength", "maxLength", "pattern", "format"}},
      {kArray,
       {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minItems", "maxItems",
        "uniqueItems"}},
      {kObject,
       {"properties", "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
        "required", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
        kSomeMember}},
      {kAnyType,
       {"const", "enum", "not", "oneOf", "if", "$dynamicRef", "$recursiveRef", "disallow", "extends"}}};
  for (const auto& [types, keys] : kAll)
    if (keys.contains(key)) return types;
  return 0;
}

// Whether no schema expresses the failure of the keyword completely.
bool is_untold(const std::string& key) {
  static const std::set<std::string> kAll = {
      "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "disallow", "extends",
      "divisibleBy"};
  return kAll.contains(key);
}

// The types that a negation may have, as its "type" and those of its parts tell.
uint8_t types_of_way(const Json& way) {
  if (!way.is_object()) return way == Json(false) ? 0 : kAnyType;
  uint8_t out = kAnyType;
  if (const Json* type = member(way, "type")) {
    bool integer = false;
    const auto types = static_cast<uint8_t>(whole_types(*type, &integer) | (integer ? kNumber : 0));
    if (types != 0) out = types;
  }
  if (const Json* all = member(way, "allOf"); all != nullptr && all->is_array())
    for (const Json& part : *all) out &= types_of_way(part);
  return out;
}

// Chooses at most kNegationsMax ways of a negation, given the types of each; none of those without a type. If it has to drop some, drops
// those of the types with the most ways, which become `untold`, so that the other types are told completely.
std::vector<bool> some_ways(const std::vector<uint8_t>& types, uint8_t* untold) {
  std::map<uint8_t, size_t> counts;
  for (const uint8_t way : types)
    if (way != 0) ++counts[way];
  std::vector<std::pair<size_t, uint8_t>> fewest_first;
  for (const auto& [way, count] : counts) fewest_first.emplace_back(count, way);
  std::ranges::sort(fewest_first);
  size_t left = kNegationsMax;
  for (const auto& [count, way] : fewest_first) {
    if (count > left) *untold |= way;
    counts[way] = std::min(count, left);
    left -= counts[way];
  }
  std::vector<bool> out;
  for (const uint8_t way : types) {
    out.push_back(way != 0 && counts[way] > 0);
    if (out.back()) --counts[way];
  }
  return out;
}

}  // namespace

Json type_names(uint8_t types) {
  Json out = Json::array();
  for (const char* name : kTypeNames)
    if ((types & json_type(name)) != 0) out.push_back(name);
  return out;
}

uint8_t whole_types(const Json& value, bool* integer) {
  uint8_t out = 0;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    if (!name.is_string()) continue;
    *integer |= name == Json("integer");
    if (name != Json("integer")) out |= json_type(name.get<std::string>());
  }
  return out;
}

SchemaMerger::Negation SchemaMerger::negated(const Json& schema, int depth) {
  if (schema.is_boolean()) return {.schemas = schema.get<bool>() ? List{} : List{Json::object()}};
  if (!schema.is_object() || depth > 8 || !work_->spend(32)) return {.untold = kAnyType};
  Negation out;
  for (const auto& [key, value] : schema.items()) negate_keyword(schema, key, value, depth, &out);
  // The negation of "type" tells all values of other types, whatever the other keywords say about them.
  if (const Json* type = member(schema, "type")) {
    bool integer = false;
    out.untold &= static_cast<uint8_t>(whole_types(*type, &integer) | (integer ? kNumber : 0));
  }
  if (out.schemas.size() > kNegationsMax) {
    std::vector<uint8_t> types;
    for (const Json& way : out.schemas) types.push_back(types_of_way(way));
    const std::vector<bool> kept = some_ways(types, &out.untold);
    size_t i = 0;
    std::erase_if(out.schemas, [&](const Json&) { return !kept[i++]; });
  }
  return out;
}

// The types of values for which `schema` may fail.
uint8_t SchemaMerger::types_that_fail(const Json& schema, int depth) {
  if (schema.is_boolean()) return schema.get<bool>() ? 0 : kAnyType;
  if (!schema.is_object() || depth > 8 || !work_->spend(32)) return kAnyType;
  uint8_t out = 0;
  for (const auto& [key, value] : schema.items()) {
    if (key == "anyOf" && value.is_array()) {
      uint8_t all = kAnyType;
      for (const Json& one : value) all &= types_that_fail(one, depth + 1);
      out |= all;
    } else if (key == "allOf" && value.is_array()) {
      for (const Json& one : value) out |= types_that_fail(one, depth + 1);
    } else if (key == "$ref" && value.is_string()) {
      const auto target = document_->target(value.get<std::string>());
      out |= target.ok() ? types_that_fail(*target.value(), depth + 1) : uint8_t{kAnyType};
    } else if (key == "type") {
      bool integer = false;
      out |= static_cast<uint8_t>(kAnyType & ~whole_types(value, &integer));
    } else if (key == "if") {
      out |= types_of_condition(schema, depth);
    } else if (!always_holds(key, value, depth)) {
      out |= types_of_keyword(key);
    }
  }
  return out;
}

// Whether every value satisfies a keyword: it asks for nothing, or its schemas allow everything.
bool SchemaMerger::always_holds(const std::string& key, const Json& value, int depth) {
  static const std::set<std::string> kOfAll = {"items", "additionalItems", "unevaluatedItems",
                                               "additionalProperties", "unevaluatedProperties"},
                                     kByName = {"properties", "patternProperties", "dependentSchemas"};
  // The depth grows faster than along one value, because a level has many schemas.
  const auto holds = [&](const Json& schema) { return types_that_fail(schema, depth + 3) == 0; };
  if (key == "required") return value.is_array() && value.empty();
  if (key == "dependencies") return !document_->has_dependencies();
  if (key == "minLength" || key == "minItems" || key == "minProperties") return value == 0;
  if (kByName.contains(key)) return value.is_object() && std::ranges::all_of(value, holds);
  return kOfAll.contains(key) && !value.is_array() && holds(value);
}

// The types of values for which "then" or "else" may fail.
uint8_t SchemaMerger::types_of_condition(const Json& schema, int depth) {
  uint8_t out = 0;
  for (const char* key : {"then", "else"})
    if (const Json* branch = member(schema, key)) out |= types_that_fail(*branch, depth + 1);
  return out;
}

// Adds schemas, each of which implies that `schema` fails because of this keyword.
void SchemaMerger::negate_keyword(const Json& schema, const std::string& key, const Json& value, int depth,
                                  Negation* out) {
  if (key == "dependencies" && !document_->has_dependencies()) return;
  const auto flip = [&](const char* type, const std::string& with, Json bound) {
    out->schemas.push_back({{"type", type}, {with, std::move(bound)}});
  };
  const auto type_of_size = [&](const std::string& what) {
    return what == "Length" ? "string" : what == "Items" ? "array" : "object";
  };
  if (key == "type") {
    negate_type(value, out);
  } else if (key == "const" || key == "enum") {
    out->schemas.push_back({{"not", {{key, value}}}});
  } else if (key == "pattern") {
    out->schemas.push_back({{"type", "string"}, {"not", {{key, value}}}});
  } else if (key == "format" && value.is_string()) {
    const std::string name = value.get<std::string>();
    // Of some formats no string is known that every checker rejects; an unknown format accepts any string.
    if (format_values(name, Bound::kOuter) != nullptr)
      out->schemas.push_back({{"type", "string"}, {"not", {{key, value}}}});
    else if (format_values(name) != nullptr)
      without_opposite_ = name;
  } else if (key == "required" && value.is_array()) {
    for (const Json& name : value)
      if (name.is_string())
        out->schemas.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
  } else if (key == "properties" && value.is_object()) {
    for (const auto& item : value.items()) {
      const std::string& name = item.key();
      const Json& inside = item.value();
      // The negation of a schema with parts is made where it is needed, which may be nowhere.
      const bool has_parts = inside.is_object() && std::ranges::any_of(kParts, [&](const char* part) {
                               return inside.contains(part);
                             });
      Negation nots = !has_parts                            ? negated(inside, depth + 1)
                      : types_that_fail(inside, depth) != 0 ? Negation{.schemas = {{{"not", inside}}}}
                                                            : Negation{};
      if (nots.untold != 0) out->untold |= kObject;
      const auto with = [&name](Json& one) {
        return Json{
            {"type", "object"}, {"required", Json::array({name})}, {"properties", {{name, std::move(one)}}}};
      };
      for (Json& one : nots.schemas) out->schemas.push_back(with(one));
    }
  } else if ((key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies") &&
             value.is_object()) {
    for (const auto& [name, wanted] : value.items()) negate_dependency(name, wanted, depth, out);
  } else if (key == "minimum" || key == "maximum") {
    const std::string strict = key == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum";
    const bool excluded = schema.value(strict, Json()) == Json(true);
    const std::string other = key == "minimum" ? "aximum" : "inimum";
    flip("number", excluded ? "m" + other : "exclusiveM" + other, value);
  } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
    if (value.is_number()) flip("number", key == "exclusiveMinimum" ? "maximum" : "minimum", value);
  } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
    const std::string what = key.substr(3);
    if (!value.is_number_unsigned()) out->untold |= types_of_keyword(key);
    if (value.is_number_unsigned() && value > 0)
      flip(type_of_size(what), "max" + what, value.get<int64_t>() - 1);
  } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
    const std::string what = key.substr(3);
    if (!value.is_number_unsigned()) out->untold |= types_of_keyword(key);
    if (value.is_number_unsigned()) flip(type_of_size(what), "min" + what, value.get<int64_t>() + 1);
  } else if (key == "anyOf" && value.is_array()) {
    negate_any(value, depth, out);
  } else if (key == "oneOf" && value.is_array()) {
    negate_any(value, depth, out);  // "oneOf" fails if no alternative holds, or if two of them do
    negate_pairs(value, out);
  } else if (key == "allOf" && value.is_array()) {
    for (const Json& one : value) out->add(negated(one, depth + 1));
  } else if (key == "items" || key == "prefixItems" || key == "additionalItems" || key == "contains" ||
             key == "uniqueItems") {
    negate_elements(schema, key, value, out);
  } else if (key == "additionalProperties" || key == "patternProperties" || key == "propertyNames" ||
             (key == "unevaluatedProperties" && evaluates_alone(schema))) {
    negate_members(schema, key, value, out);
  } else if (key == "not") {
    out->schemas.push_back(value);
  } else if (key == "$ref" && value.is_string()) {
    const auto target = document_->target(value.get<std::string>());
    out->add(target.ok() ? negated(*target.value(), depth + 1) : Negation{.untold = kAnyType});
  } else if (key == "multipleOf" && value.is_number()) {
    out->schemas.push_back({{"type", "number"}, {"not", {{key, value}}}});
  } else if (key == "if") {
    negate_condition(schema, value, out);
  } else if (is_untold(key) && !always_holds(key, value, depth)) {
    out->untold |= types_of_keyword(key);
  }
}

// Adds schemas whose values satisfy two of the schemas in `list`.
void SchemaMerger::negate_pairs(const Json& list, Negation* out) {
  constexpr size_t kComparedMax = 64;
  const size_t count = std::min(list.size(), kComparedMax);
  if (list.size() > count) out->untold = kAnyType;
  std::vector<uint8_t> each, types;
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < count; ++i) {
    each.push_back(types_of_way(list[i]));
    for (size_t k = 0; k < i; ++k) {
      pairs.emplace_back(k, i);
      types.push_back(each[k] & each[i]);
    }
  }
  const std::vector<bool> kept = some_ways(types, &out->untold);
  for (size_t n = 0; n < pairs.size(); ++n)
    if (kept[n])
      out->schemas.push_back({{"allOf", Json::array({list[pairs[n].first], list[pairs[n].second]})}});
}

// Negates a keyword about the names or values of members: some member fails it.
void SchemaMerger::negate_members(const Json& schema, const std::string& key, const Json& value,
                                  Negation* out) {
  const auto some = [&](Json names, const Json& inside) {
    if (types_that_fail(inside, 0) == 0) return;
    names["type"] = "string";
    out->schemas.push_back(
        {{"type", "object"}, {kSomeMember, {{"names", std::move(names)}, {"value", {{"not", inside}}}}}});
  };
  if (key == "propertyNames") {
    if ((types_that_fail(value, 0) & kString) != 0) some({{"not", value}}, false);
  } else if (key == "patternProperties") {
    if (value.is_object())
      for (const auto& [pattern, inside] : value.items()) some({{"pattern", pattern}}, inside);
  } else {
    Json names = {{"allOf", Json::array()}}, listed = Json::array();
    if (const Json* properties = member(schema, "properties");
        properties != nullptr && properties->is_object())
      for (const auto& [name, inside] : properties->items()) listed.push_back(name);
    if (!listed.empty()) names["allOf"].push_back({{"not", {{"enum", std::move(listed)}}}});
    if (const Json* patterns = member(schema, "patternProperties");
        patterns != nullptr && patterns->is_object())
      for (const auto& [pattern, inside] : patterns->items())
        names["allOf"].push_back({{"not", {{"pattern", pattern}}}});
    some(std::move(names), value);
  }
}

// Adds schemas for a member that is present while its dependency fails.
void SchemaMerger::negate_dependency(const std::string& name, const Json& wanted, int depth, Negation* out) {
  const Json there = {{"type", "object"}, {"required", Json::array({name})}};
  if (wanted.is_array() || wanted.is_string()) {
    for (const Json& other : wanted.is_array() ? wanted : Json::array({wanted})) {
      if (!other.is_string()) continue;
      out->schemas.push_back(there);
      out->schemas.back()["properties"] = {{other.get<std::string>(), false}};
    }
    return;
  }
  Negation nots = negated(wanted, depth + 1);
  out->untold |= nots.untold & kObject;
  for (Json& one : nots.schemas) out->schemas.push_back({{"allOf", Json::array({there, std::move(one)})}});
}

// Adds schemas of the values that satisfy "if" and fail "then", and of values that fail "if" and "else".
void SchemaMerger::negate_condition(const Json& schema, const Json& condition, Negation* out) {
  has_simpler_form_ = true;
  if (mode_ != Negations::kCounted) {  // many conditions have too many combinations
    out->untold |= types_of_condition(schema, 0);
    return;
  }
  const auto add = [&](const char* key, const Json& side) {
    const Json* branch = member(schema, key);
    if (branch == nullptr || types_that_fail(*branch, 0) == 0) return;
    out->schemas.push_back({{"allOf", Json::array({side, {{"not", *branch}}})}});
  };
  add("then", condition);
  add("else", {{"not", condition}});
}

void SchemaMerger::negate_type(const Json& value, Negation* out) {
  bool integer = false;
  const uint8_t types = whole_types(value, &integer);
  if (types == kAnyType) return;
  out->schemas.push_back({{"type", type_names(static_cast<uint8_t>(kAnyType & ~types))}});
  if (integer && (types & kNumber) == 0) out->schemas.back()["not"] = {{"type", "integer"}};
}

// Negates a keyword about elements: some element fails its schema, too few or too many elements match "contains", or two elements are equal.
void SchemaMerger::negate_elements(const Json& schema, const std::string& key, const Json& value,
                                   Negation* out) {
  const auto array = [&](Json with) {
    with["type"] = "array";
    out->schemas.push_back(std::move(with));
  };
  const auto can_fail = [&](const Json& inside) { return types_that_fail(inside, 0) != 0; };
  // The element at `index` fails `inside`.
  const auto negate_at = [&](size_t index, const Json& inside) {
    Json prefix = Json::array();
    while (prefix.size() < index) prefix.push_back(true);
    prefix.push_back({{"not", inside}});
    array({{"minItems", index + 1}, {"prefixItems", std::move(prefix)}});
  };
  const auto bound = [&](const char* name, int64_t otherwise) {
    const Json* count = member(schema, name);
    if (count != nullptr && !count->is_number_unsigned()) out->untold |= kArray;
    return count != nullptr && count->is_number_unsigned() ? count->get<int64_t>() : otherwise;
  };
  const Json* items = member(schema, "items");
  const bool list = items != nullptr && items->is_array();  // drafts up to 2019
  if (key == "uniqueItems") {
    if (value == Json(true)) array({{"not", {{"uniqueItems", true}}}});
  } else if (key == "contains") {
    const int64_t least = bound("minContains", 1), most = bound("maxContains", -1);
    if (least > 0) array({{"contains", value}, {"minContains", 0}, {"maxContains", least - 1}});
    if (most >= 0) array({{"contains", value}, {"minContains", most + 1}});
  } else if (value.is_array()) {
    if (value.size() > kNegationsMax) out->untold |= kArray;
    for (size_t i = 0; i < std::min(value.size(), kNegationsMax); ++i)
      if (can_fail(value[i])) negate_at(i, value[i]);
  } else if (can_fail(value) && (key == "items" || list)) {
    const Json* prefix = list ? items : member(schema, "prefixItems");
    const size_t before = prefix != nullptr && prefix->is_array() ? prefix->size() : 0;
    if (before == 0) return array({{"contains", {{"not", value}}}});
    // Negates only the first element after the prefix, so the negation is incomplete.
    out->untold |= kArray;
    if (before <= kNegationsMax) negate_at(before, value);
  }
}

// Adds schemas whose values fail every schema of `any`. Each combines one reason per schema of `any`.
void SchemaMerger::negate_any(const Json& any, int depth, Negation* out) {
  List all{Json::object()};
  for (const Json& one : any) {
    const Negation nots = negated(one, depth + 1);
    out->untold |= nots.untold;
    std::vector<uint8_t> types;
    for (const Json& before : all)
      for (const Json& also : nots.schemas) types.push_back(types_of_way(before) & types_of_way(also));
    const std::vector<bool> kept = some_ways(types, &out->untold);
    List next;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      next.push_back(all[i / nots.schemas.size()]);
      next.back()["allOf"].push_back(nots.schemas[i % nots.schemas.size()]);
    }
    all = std::move(next);
  }
  std::move(all.begin(), all.end(), std::back_inserter(out->schemas));
}

}  // namespace sluice
