// That a schema does not hold, said by schemas.
#include <set>

#include "grammar/schema_merge.h"

namespace sluice {
namespace {

constexpr size_t kNegationsMax = 24;

}  // namespace

// Schemas of which each implies that `schema` does not hold; together, as far as keywords can say it, all that does not.
std::optional<std::vector<Json>> SchemaMerger::negated(const Json& schema, int depth) {
  using List = std::vector<Json>;
  if (schema.is_boolean()) return schema.get<bool>() ? List{} : List{Json::object()};
  if (!schema.is_object() || depth > 8 || !work_->spend(32)) return {};
  static const std::set<std::string> kSaysNothing = {
      "title",    "description", "$comment",      "$id",      "id",        "$schema", "default",
      "examples", "example",     "deprecated",    "readOnly", "writeOnly", "$defs",   "definitions",
      "$anchor",  "nullable",    "discriminator", "then",     "else"};
  List out;
  const auto flip = [&](const char* type, const char* key, Json value) {
    out.push_back({{"type", type}, {key, std::move(value)}});
  };
  for (const auto& [key, value] : schema.items()) {
    if (kSaysNothing.contains(key) || key.starts_with("x-")) continue;
    if (key == "type") {
      uint8_t types = 0;
      for (const Json& name : value.is_array() ? value : Json::array({value}))
        if (name.is_string()) types |= json_type(name.get<std::string>());
      Json others = Json::array();
      for (const char* name : {"null", "boolean", "number", "string", "array", "object"})
        if ((types & json_type(name)) == 0) others.push_back(name);
      if (!others.empty()) out.push_back({{"type", others}});
    } else if (key == "const" || key == "enum") {
      out.push_back({{"not", {{key, value}}}});
    } else if (key == "pattern") {
      out.push_back({{"type", "string"}, {"not", {{key, value}}}});
    } else if (key == "required" && value.is_array()) {
      for (const Json& name : value)
        if (name.is_string())
          out.push_back({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}});
    } else if (key == "properties" && value.is_object()) {
      for (const auto& [name, inside] : value.items()) {
        auto nots = negated(inside, depth + 1);
        if (!nots) return {};
        for (Json& one : *nots)
          out.push_back({{"type", "object"},
                         {"required", Json::array({name})},
                         {"properties", {{name, std::move(one)}}}});
      }
    } else if (key == "minimum") {
      flip("number", schema.value("exclusiveMinimum", Json()) == Json(true) ? "maximum" : "exclusiveMaximum",
           value);
    } else if (key == "maximum") {
      flip("number", schema.value("exclusiveMaximum", Json()) == Json(true) ? "minimum" : "exclusiveMinimum",
           value);
    } else if (key == "exclusiveMinimum" || key == "exclusiveMaximum") {
      if (value.is_number()) flip("number", key == "exclusiveMinimum" ? "maximum" : "minimum", value);
    } else if (key == "minLength" || key == "minItems" || key == "minProperties") {
      const std::string what = key.substr(3);
      if (!value.is_number_unsigned()) return {};
      if (value > 0)
        flip(what == "Length"  ? "string"
             : what == "Items" ? "array"
                               : "object",
             ("max" + what).c_str(), value.get<int64_t>() - 1);
    } else if (key == "maxLength" || key == "maxItems" || key == "maxProperties") {
      const std::string what = key.substr(3);
      if (!value.is_number_unsigned()) return {};
      flip(what == "Length"  ? "string"
           : what == "Items" ? "array"
                             : "object",
           ("min" + what).c_str(), value.get<int64_t>() + 1);
    } else if (key == "anyOf" && value.is_array()) {
      List all{Json::object()};
      for (const Json& one : value) {
        auto nots = negated(one, depth + 1);
        if (!nots || all.size() * nots->size() > kNegationsMax) return {};
        List next;
        for (const Json& before : all)
          for (const Json& also : *nots) {
            Json both = before;
            both["allOf"].push_back(also);
            next.push_back(std::move(both));
          }
        all = std::move(next);
      }
      out.insert(out.end(), all.begin(), all.end());
    } else if (key == "allOf" && value.is_array()) {
      for (const Json& one : value) {
        auto nots = negated(one, depth + 1);
        if (!nots) return {};
        out.insert(out.end(), nots->begin(), nots->end());
      }
    } else if (key == "not") {
      out.push_back(value);
    } else if (key == "$ref" && value.is_string()) {
      const auto target = document_->target(schema, value.get<std::string>());
      auto nots = target.ok() ? negated(*target.value(), depth + 1) : std::nullopt;
      if (!nots) return {};
      out.insert(out.end(), nots->begin(), nots->end());
    } else {
      return {};
    }
    if (out.size() > kNegationsMax) return {};
  }
  return out;
}

}  // namespace sluice
