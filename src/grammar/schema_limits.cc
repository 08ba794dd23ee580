#include "grammar/schema_limits.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/printable.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr std::string_view kMaps[] = {"properties", "patternProperties", "$defs", "definitions"};
constexpr std::string_view kLists[] = {"anyOf", "oneOf", "allOf", "prefixItems", "items"};
constexpr std::string_view kSingles[] = {"items", "additionalProperties", "unevaluatedProperties",
                                         "unevaluatedItems", "propertyNames"};
constexpr std::string_view kWholes[] = {"$ref", "anyOf", "oneOf", "allOf"};
// What the compiler leaves out without a word.
constexpr std::string_view kIgnored[] = {"contains", "dependentRequired", "dependentSchemas", "else",
                                         "if",       "maxContains",       "minContains",      "not",
                                         "then",     "uniqueItems"};
// What may stand beside those.
constexpr std::string_view kBeside[] = {"$anchor",     "$comment",      "$defs",       "$id",
                                        "$schema",     "default",       "definitions", "deprecated",
                                        "description", "discriminator", "examples",    "nullable",
                                        "readOnly",    "title",         "type",        "writeOnly"};

struct Walk {
  int64_t pattern_bytes_max, subschemas = 0;

  static Status wrong(const std::string& at, const std::string& wanted, const std::string& found) {
    return invalid(at + ": wanted " + wanted + ", found " + found);
  }

  Status check_beside(const Json& schema, const std::string& at) const {
    for (const std::string_view whole : kWholes) {
      if (!schema.contains(whole)) continue;
      for (const auto& [key, value] : schema.items())
        if (key != whole && std::find(std::begin(kBeside), std::end(kBeside), key) == std::end(kBeside))
          return wrong(at, std::string(whole) + " alone",
                       "'" + printable(key) + "' beside it, which is not supported");
    }
    return {};
  }

  Status check_object(const Json& schema, const std::string& at) const {
    const auto properties = schema.find("properties");
    if (properties == schema.end() || !properties->is_object()) return {};
    const auto required = schema.find("required");
    const int64_t needed =
        required != schema.end() && required->is_array() ? std::ssize(*required) : int64_t{0};
    const int64_t optional = std::ssize(*properties) - needed;
    if (optional <= kOptionalMax) return {};
    return wrong(at + ".properties", "at most " + std::to_string(kOptionalMax) + " that are not required",
                 std::to_string(optional));
  }

  Status all(const Json& schemas, const std::string& at) {
    for (const auto& [key, schema] : schemas.items())
      SLUICE_TRY(one(schema, at + "." + printable(valid_utf8(key))));
    return {};
  }

  Status one(const Json& schema, const std::string& at) {
    if (++subschemas > kSubschemasMax)
      return wrong("JSON schema", "at most " + std::to_string(kSubschemasMax) + " schemas in it", "more");
    if (!schema.is_object()) return {};
    for (const std::string_view key : kIgnored)
      if (schema.contains(key) && schema.at(key) != Json(false))
        return wrong(at, "keywords that are supported", "'" + std::string(key) + "'");
    SLUICE_TRY(check_beside(schema, at));
    SLUICE_TRY(check_object(schema, at));
    const auto pattern = schema.find("pattern");
    if (pattern != schema.end() && pattern->is_string()) {
      const int64_t bytes = std::ssize(pattern->get_ref<const std::string&>());
      if (bytes > pattern_bytes_max)
        return wrong(at + ".pattern", "at most " + std::to_string(pattern_bytes_max) + " bytes",
                     std::to_string(bytes));
    }
    return children(schema, at);
  }

  Status children(const Json& schema, const std::string& at) {
    for (const auto& [key, value] : schema.items()) {
      const auto named = [&key = key](const auto& names) {
        return std::find(std::begin(names), std::end(names), key) != std::end(names);
      };
      const std::string inside = at + "." + key;
      if ((named(kMaps) && value.is_object()) || (named(kLists) && value.is_array()))
        SLUICE_TRY(all(value, inside));
      else if (named(kSingles))
        SLUICE_TRY(one(value, inside));
    }
    return {};
  }
};

}  // namespace

Status check_schema(const Json& schema, int64_t pattern_bytes_max) {
  return Walk{.pattern_bytes_max = pattern_bytes_max}.one(schema, "JSON schema");
}

}  // namespace sluice
