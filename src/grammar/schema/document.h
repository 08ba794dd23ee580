// A JSON schema with the order of its members and the targets of its references.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "grammar/automaton.h"
#include "grammar/char_set.h"
#include "grammar/value_set.h"

namespace sluice {

// A keyword of schemas that negations make: some member's name satisfies "names" and its value satisfies "value".
inline constexpr const char* kSomeMember = "some member";

class SchemaDocument {
 public:
  static Result<std::shared_ptr<SchemaDocument>> parse(const std::string& text);

  const Json& root() const { return root_; }
  // The members of an object in the order of the text. Objects made by keep() or only() have the order of their keys.
  std::vector<std::string> keys(const Json& object) const;
  // The target of "$ref", "$dynamicRef" or "$recursiveRef". kInvalidArgument: the target is in another document or does not exist.
  Result<const Json*> target(const std::string& reference) const;
  // The number of "$dynamicAnchor"s with this name.
  int64_t anchors(const std::string& name) const;
  // Stores a generated schema.
  const Json* keep(Json schema);
  // Stores a generated schema, or returns the one with the same text that is stored already.
  const Json* keep_once(Json schema);
  // The draft that "$schema" names: 4, 6, 7, 2019 or 2020. Without "$schema": 2020.
  int draft() const { return draft_; }
  // Later drafts have no "dependencies", but some checkers apply it to them. So it restricts values, and no value surely fails it.
  bool has_dependencies() const { return draft_ < 2019; }
  // Renames the keywords that the draft does not know, so that they have no effect, as in checkers of that draft.
  void drop_unknown(const Json& schema);
  // Makes "contentEncoding" and "contentMediaType" a format, where the draft lets validators check them. kInvalidArgument: not possible.
  Status name_content(const Json& schema);
  // Returns a schema with only these keywords of `schema`. Equal calls return the same schema.
  const Json* only(const Json& schema, const std::vector<std::string>& keywords);
  // The automaton of a pattern, which is compiled on the first call. kInvalidArgument: the pattern is not supported.
  Result<const Dfa*> pattern(const std::string& pattern, Bound bound, Work* work);
  // The automaton of a pattern if pattern() has compiled it; else null.
  const Dfa* known_pattern(const std::string& pattern, Bound bound) const;
  // Whether `list`, which must be part of a stored schema, contains the value. The first call for a long list builds a hash set. False if
  // the budget is spent.
  bool lists(std::span<const Json> list, const Json& value, Work* work) const;

 private:
  // A schema with an "$id", and its URI, which is the base of the references inside.
  struct Resource {
    const Json* schema;
    std::string uri;
  };
  enum class Place : uint8_t { kSchema, kNamedSchemas, kUnknown };
  void note_resources(Json& at, Resource resource, Place place);
  void note_schema(Json& at, Resource* resource);
  bool is_ambiguous(const std::string& uri) const;
  Json root_;
  std::string root_uri_;
  int draft_ = 2020;
  std::unordered_map<const Json*, std::vector<std::string>> order_;
  std::map<std::string, const Json*> named_;  // by URI
  std::vector<std::pair<std::string, const Json*>> named_again_;
  std::set<std::string> ambiguous_;  // URIs that name several different schemas
  bool disputed_ =
      false;  // checkers resolve some relative "$id" to different URIs with the same last segment
  std::map<std::pair<const Json*, std::string>, const Json*> anchors_;  // by resource and name
  std::deque<Json> kept_;
  std::unordered_map<std::string, const Json*> kept_once_;  // by text
  std::map<std::pair<const Json*, std::string>, const Json*> parts_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Bound>, Dfa> patterns_;
  // By the address of the list's first value.
  mutable std::unordered_map<const Json*, ValueSet> value_sets_;
};

// Quotes a text for a message and truncates a long one.
std::string shown(const std::string& text);
// Names the kind of a JSON value and quotes it, as a phrase that continues "found ".
std::string described(const Json& value);
// Quotes a reference in the same way, without the base URI that was added if the reference was relative.
std::string shown_reference(const std::string& text);

std::span<const Json> values_in(const Json& array);

// The value of a key; null: the key is absent, or `object` is not an object.
inline const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() ? &*found : nullptr;
}
// Like member(); also null if the value is not a string.
inline const std::string* string_at(const Json& object, const char* key) {
  const Json* value = member(object, key);
  return value != nullptr ? value->get_ptr<const std::string*>() : nullptr;
}

// Whether `value` is valid under `schema`. kInner: every checker accepts it; kOuter: some checker accepts it. All patterns must be compiled
// already. If the budget is spent, the result is false for kInner and true for kOuter.
bool is_valid(const SchemaDocument& document, const Json& value, const Json& schema, Bound bound, Work* work);
// Compiles all patterns below `schema`. Fails if is_valid() cannot judge a keyword, and names the keyword.
Status prepare_validation(SchemaDocument& document, const Json& schema, Work* work);

// Drops the keywords that the draft does not know from all schemas reachable from the root. kInvalidArgument: a schema refers to itself for
// the same value (not for an element or member of it).
Status settle(SchemaDocument* document, Work* work);

}  // namespace sluice
