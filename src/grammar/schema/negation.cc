// Expresses by schemas that a schema fails.
#include <algorithm>
#include <set>
#include <string>

#include "grammar/schema/merge.h"

namespace sluice {
namespace {

constexpr size_t kNegationsMax = 24;

// Keywords that can fail without a schema to express it.
const std::set<std::string>& untold() {
  static const std::set<std::string> kAll = {"multipleOf",
                                             "items",
                                             "prefixItems",
                                             "additionalItems",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "uniqueItems",
                                             "unevaluatedItems",
                                             "additionalProperties",
                                             "patternProperties",
                                             "propertyNames",
                                             "unevaluatedProperties",
                                             "dependencies",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "oneOf",
                                             "if",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "disallow",
                                             "extends",
                                             "divisibleBy"};
  return kAll;
}

}  // namespace

SchemaMerger::Negation SchemaMerger::negated(const Json& schema, int depth) {
  if (schema.is_boolean()) return {.schemas = schema.get<bool>() ? List{} : List{Json::object()}};
  if (!schema.is_object() || depth > 8 || !work_->spend(32)) return {.complete = false};
  Negation out;
  for (const auto& [key, value] : schema.items()) negate_keyword(schema, key, value, depth, &out);
  if (out.schemas.size() > kNegationsMax) out.schemas.resize(kNegationsMax), out.complete = false;
  return out;
}

// Adds schemas each of which implies that `schema` fails by this keyword.
void SchemaMerger::negate_keyword(const Json& schema, const std::string& key, const Json& value, int depth,
                                  Negation* out) {
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
    const bool told = format_values(name, Bound::kOuter) != nullptr;
    if (told) out->schemas.push_back({{"type", "string"}, {"not", {{key, value}}}});
    out->complete &= told || format_values(name) == nullptr;  // an unknown format accepts any string
  } else if (key == "required" && value.is_array()) {
    for (const Json& name : value)
      if (name.is_string())
        out->schemas.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
  } else if (key == "properties" && value.is_object()) {
    for (const auto& [name, inside] : value.items()) {
      Negation nots = negated(inside, depth + 1);
      out->complete &= nots.complete;
      for (Json& one : nots.schemas)
        out->schemas.push_back({{"type", "object"},
                                {"required", Json::array({name})},
                                {"properties", {{name, std::move(one)}}}});
    }
  } else if (key == "minimum" || key == "maximum") {
    const std::string strict = key == "minimum" ? "exclusiveMinimum" : "exclusiveMaximum";
    const bool excluded = schema.value(strict, Json()) == Json(true);
    const std::string other = key == "minimum" ? "aximum" : "inimum";
    flip("number", excluded ? "m" + other : "exclusiveM" + other, value);
  } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
    if (value.is_number()) flip("number", key == "exclusiveMinimum" ? "maximum" : "minimum", value);
  } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
    const std::string what = key.substr(3);
    out->complete &= value.is_number_unsigned();
    if (value.is_number_unsigned() && value > 0)
      flip(type_of_size(what), "max" + what, value.get<int64_t>() - 1);
  } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
    const std::string what = key.substr(3);
    out->complete &= value.is_number_unsigned();
    if (value.is_number_unsigned()) flip(type_of_size(what), "min" + what, value.get<int64_t>() + 1);
  } else if (key == "anyOf" && value.is_array()) {
    negate_any(value, depth, out);
  } else if (key == "allOf" && value.is_array()) {
    for (const Json& one : value) out->add(negated(one, depth + 1));
  } else if (key == "not") {
    out->schemas.push_back(value);
  } else if (key == "$ref" && value.is_string()) {
    const auto target = document_->target(value.get<std::string>());
    out->add(target.ok() ? negated(*target.value(), depth + 1) : Negation{.complete = false});
  } else {
    out->complete &= !untold().contains(key);
  }
}

void SchemaMerger::negate_type(const Json& value, Negation* out) {
  uint8_t types = 0;
  bool integer = false;
  for (const Json& name : value.is_array() ? value : Json::array({value})) {
    if (!name.is_string()) continue;
    integer |= name == Json("integer");
    if (name != Json("integer")) types |= json_type(name.get<std::string>());
  }
  Json others = Json::array();
  for (const char* name : {"null", "boolean", "number", "string", "array", "object"})
    if ((types & json_type(name)) == 0) others.push_back(name);
  if (others.empty()) return;
  out->schemas.push_back({{"type", others}});
  if (integer && (types & kNumber) == 0) out->schemas.back()["not"] = {{"type", "integer"}};
}

// All schemas of `any` fail: combines one reason for each.
void SchemaMerger::negate_any(const Json& any, int depth, Negation* out) {
  List all{Json::object()};
  for (const Json& one : any) {
    const Negation nots = negated(one, depth + 1);
    out->complete &= nots.complete;
    List next;
    for (const Json& before : all)
      for (const Json& also : nots.schemas) {
        if (next.size() > kNegationsMax) break;
        Json both = before;
        both["allOf"].push_back(also);
        next.push_back(std::move(both));
      }
    out->complete &= next.size() <= kNegationsMax;
    all = std::move(next);
  }
  out->schemas.insert(out->schemas.end(), all.begin(), all.end());
}

}  // namespace sluice
