// Applies the document's draft to its schemas, and finds schemas that refer to themselves for the same value (not for an element or member
// of it). No checker terminates on such schemas.
#include <map>
#include <string>
#include <vector>

#include "grammar/leaf.h"
#include "grammar/schema/document.h"

namespace sluice {
namespace {

constexpr const char* kReferences[] = {"$ref", "$dynamicRef", "$recursiveRef"};

// The subschemas of one schema: `here` apply to the same value, `inside` to its elements, members or names.
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
    if (const std::string* name = string_at(schema, key))
      if (const auto target = document.target(*name); target.ok()) out.here.push_back(target.value());
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
    if (const std::string* found = string_at(schema, key))
      name = std::string(key) + " " + shown_reference(*found);
  return invalid("JSON schema: " + name +
                 ": wanted a finite schema, found one that refers to itself at the same value");
}

}  // namespace

void SchemaDocument::drop_unknown(const Json& schema) {
  // Each keyword with the first draft that has it.
  static const std::map<std::string, int> kSince = {{"const", 6},
                                                    {"contains", 6},
                                                    {"propertyNames", 6},
                                                    {"if", 7},
                                                    {"then", 7},
                                                    {"else", 7},
                                                    {"dependentRequired", 2019},
                                                    {"dependentSchemas", 2019},
                                                    {"unevaluatedProperties", 2019},
                                                    {"unevaluatedItems", 2019},
                                                    {"minContains", 2019},
                                                    {"maxContains", 2019},
                                                    {"$recursiveRef", 2019},
                                                    {"prefixItems", 2020},
                                                    {"$dynamicRef", 2020},
                                                    {"type", 0},
                                                    {"enum", 0},
                                                    {"minimum", 0},
                                                    {"maximum", 0},
                                                    {"exclusiveMinimum", 0},
                                                    {"exclusiveMaximum", 0},
                                                    {"multipleOf", 0},
                                                    {"minLength", 0},
                                                    {"maxLength", 0},
                                                    {"pattern", 0},
                                                    {"format", 0},
                                                    {"items", 0},
                                                    {"additionalItems", 0},
                                                    {"minItems", 0},
                                                    {"maxItems", 0},
                                                    {"uniqueItems", 0},
                                                    {"properties", 0},
                                                    {"patternProperties", 0},
                                                    {"additionalProperties", 0},
                                                    {"required", 0},
                                                    {"minProperties", 0},
                                                    {"maxProperties", 0},
                                                    {"dependencies", 0},
                                                    {"allOf", 0},
                                                    {"anyOf", 0},
                                                    {"oneOf", 0},
                                                    {"not", 0}};
  if (draft_ >= 2020) return;
  const bool only_reference = draft_ < 2019 && string_at(schema, "$ref") != nullptr;
  // The document owns the schema.
  auto& members = const_cast<Json&>(schema).get_ref<Json::object_t&>();
  std::vector<std::string> unknown;
  for (const auto& [key, value] : members)
    if (const auto since = kSince.find(key);
        since != kSince.end() && (only_reference || since->second > draft_))
      unknown.push_back(key);
  for (const std::string& key : unknown) {
    // Other maps refer to the value by its address, which extract() preserves.
    auto member = members.extract(key);
    std::string name = "x-unknown-" + key;
    while (members.contains(name)) name += '-';
    member.key() = std::move(name);
    members.insert(std::move(member));
  }
}

// Some validators of drafts 6 and 7 check what a text decodes to, as these drafts allow.
Status SchemaDocument::name_content(const Json& schema) {
  if (draft_ < 6 || draft_ >= 2019 || string_at(schema, "$ref") != nullptr) return {};
  std::string known;
  for (const char* key : {"contentEncoding", "contentMediaType"}) {
    const std::string* value = string_at(schema, key);
    const std::string format = value != nullptr ? "content " + *value : "";
    if (format_values(format) == nullptr) continue;
    const std::string* beside = string_at(schema, "format");
    if (beside != nullptr && format_values(*beside) != nullptr)
      return invalid("JSON schema: " + std::string(key) + ": wanted no " +
                     (known.empty() ? "format" : known) +
                     " next to it in this draft, because no string is known that fits both, found " + *value);
    known = key;
    // The document owns the schema. No other map refers to a new member.
    const_cast<Json&>(schema)["format"] = format;
  }
  return {};
}

Status settle(SchemaDocument* document, Work* work) {
  enum class Seen : uint8_t { kOpen, kDone };
  std::map<const Json*, Seen> seen;
  struct Frame {
    const Json* schema;
    std::vector<const Json*> here;
  };
  std::vector<const Json*> starts{&document->root()};
  std::vector<Frame> way;  // a chain of schemas for one value, each a subschema of the previous one
  Status content;
  const auto enter = [&](const Json* schema) {
    if (!schema->is_object() || !seen.try_emplace(schema, Seen::kOpen).second) return;
    document->drop_unknown(*schema);
    if (content.ok()) content = document->name_content(*schema);
    Next next = next_of(*document, *schema);
    starts.insert(starts.end(), next.inside.begin(), next.inside.end());
    way.push_back({schema, std::move(next.here)});
  };
  while (!starts.empty()) {
    const Json* start = starts.back();
    starts.pop_back();
    enter(start);
    while (!way.empty()) {
      if (!work->spend(16)) return invalid("JSON schema: takes too long to compile");
      SLUICE_TRY(content);
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
