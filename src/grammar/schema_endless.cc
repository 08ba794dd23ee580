// Schemas that lead back to themselves without a step into the value: no checker comes to an end with them.
#include <map>
#include <string>
#include <vector>

#include "base/printable.h"
#include "grammar/schema_document.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr const char* kReferences[] = {"$ref", "$dynamicRef", "$recursiveRef"};

// What one schema leads to: schemas of the same value, and schemas of its parts.
struct Next {
  std::vector<const Json*> here = {}, inside = {};
};

void add(const Json& schema, const char* key, std::vector<const Json*>* out) {
  const auto found = schema.find(key);
  if (found == schema.end()) return;
  if (found->is_array()) {
    for (const Json& one : *found) out->push_back(&one);
  } else {
    out->push_back(&*found);
  }
}

void add_values(const Json& schema, const char* key, std::vector<const Json*>* out) {
  const auto found = schema.find(key);
  if (found == schema.end() || !found->is_object()) return;
  for (const Json& one : *found) out->push_back(&one);
}

Next next_of(const SchemaDocument& document, const Json& schema) {
  Next out;
  if (!schema.is_object()) return out;
  for (const char* key : kReferences)
    if (const auto name = schema.find(key); name != schema.end() && name->is_string())
      if (const auto target = document.target(schema, name->get<std::string>()); target.ok())
        out.here.push_back(target.value());
  if (document.draft() < 2019 && schema.contains("$ref")) return out;
  for (const char* key : {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
    add(schema, key, &out.here);
  for (const char* key : {"dependentSchemas", "dependencies"}) add_values(schema, key, &out.here);
  for (const char* key : {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
                          "additionalProperties", "unevaluatedProperties", "propertyNames"})
    add(schema, key, &out.inside);
  for (const char* key : {"properties", "patternProperties"}) add_values(schema, key, &out.inside);
  return out;
}

Status endless(const Json& schema) {
  std::string name = "a keyword";
  for (const char* key : kReferences)
    if (const auto found = schema.find(key); found != schema.end() && found->is_string())
      name = std::string(key) + " '" + printable(valid_utf8(found->get<std::string>().substr(0, 120))) + "'";
  return invalid("JSON schema: " + name +
                 ": wanted a schema that ends, found one that leads back to itself at the same value");
}

}  // namespace

Status refuse_endless(const SchemaDocument& document, Work* work) {
  enum class Seen : uint8_t { kOpen, kDone };
  std::map<const Json*, Seen> seen;
  struct Frame {
    const Json* schema;
    std::vector<const Json*> here;
  };
  std::vector<const Json*> starts{&document.root()};
  std::vector<Frame> way;  // schemas of one value, each led to by the one before it
  const auto enter = [&](const Json* schema) {
    if (!schema->is_object() || !seen.try_emplace(schema, Seen::kOpen).second) return;
    Next next = next_of(document, *schema);
    starts.insert(starts.end(), next.inside.begin(), next.inside.end());
    way.push_back({schema, std::move(next.here)});
  };
  while (!starts.empty()) {
    const Json* start = starts.back();
    starts.pop_back();
    enter(start);
    while (!way.empty()) {
      if (!work->spend(16)) return invalid("JSON schema: takes too long to compile");
      Frame& last = way.back();
      if (last.here.empty()) {
        seen[last.schema] = Seen::kDone;
        way.pop_back();
        continue;
      }
      const Json* next = last.here.back();
      last.here.pop_back();
      const auto known = seen.find(next);
      if (known != seen.end() && known->second == Seen::kOpen) return endless(*last.schema);
      enter(next);
    }
  }
  return {};
}

}  // namespace sluice
