// A JSON schema as it was written: the order of members, and what references name.
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

class SchemaDocument {
 public:
  static Result<std::shared_ptr<SchemaDocument>> parse(const std::string& text);

  const Json& root() const { return root_; }
  // The members of an object in the order of the text; of one that was made here in that of its keys.
  std::vector<std::string> keys(const Json& object) const;
  // What a "$ref", "$dynamicRef" or "$recursiveRef" names. kInvalidArgument: another document, or nothing.
  Result<const Json*> target(const std::string& reference) const;
  // How many "$dynamicAnchor"s have this name.
  int64_t anchors(const std::string& name) const;
  // Keeps a schema that was made here.
  const Json* keep(Json schema);
  // Of "$schema": 4, 6, 7, 2019 or 2020, which is the one without it.
  int draft() const { return draft_; }
  // Renames keywords of a schema that the draft does not have, so that they say nothing, as checkers of that draft have it.
  void drop_unknown(const Json& schema);
  // A schema that says what `schema` says by these keywords alone; made once.
  const Json* only(const Json& schema, const std::vector<std::string>& keywords);
  // Whether a text matches a pattern; patterns are compiled once. kInvalidArgument: the pattern cannot be had.
  Result<const Dfa*> pattern(const std::string& pattern, Bound bound, Work* work);
  // One that pattern() has compiled; null: none.
  const Dfa* known_pattern(const std::string& pattern, Bound bound) const;
  // Whether `list`, which is a part of a schema that is kept here, has a value. Long lists are sorted once, at the first call. False
  // without work left.
  bool lists(std::span<const Json> list, const Json& value, Work* work) const;

 private:
  // A schema with an "$id", and its URI; references inside are relative to it.
  struct Resource {
    const Json* schema;
    std::string uri;
  };
  enum class Place : uint8_t { kSchema, kNamedSchemas, kUnknown };
  void note_resources(Json& at, Resource resource, Place place);
  void note_schema(Json& at, Resource* resource);
  Json root_;
  std::string root_uri_;
  int draft_ = 2020;
  std::unordered_map<const Json*, std::vector<std::string>> order_;
  std::map<std::string, const Json*> named_;  // by URI
  std::vector<std::pair<std::string, const Json*>> named_again_;
  std::set<std::string> ambiguous_;                                     // URIs of several schemas that differ
  std::map<std::pair<const Json*, std::string>, const Json*> anchors_;  // by resource and name
  std::deque<Json> kept_;
  std::map<std::pair<const Json*, std::string>, const Json*> parts_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Bound>, Dfa> patterns_;
  mutable std::unordered_map<const Json*, ValueSet> value_sets_;  // by the first value of the list
};

std::span<const Json> values_in(const Json& array);

// Whether `value` is valid by `schema`. kInner: for every checker; kOuter: for some checker. Patterns were compiled before. Without work
// left it is neither surely valid nor surely not.
bool is_valid(const SchemaDocument& document, const Json& value, const Json& schema, Bound bound, Work* work);
// Compiles all patterns below `schema`, and names what is_valid() could not judge.
Status prepare_validation(SchemaDocument& document, const Json& schema, Work* work);

// Drops what the draft does not know from all schemas that the root leads to. kInvalidArgument: one of them leads back to itself without
// a step into the value.
Status settle(SchemaDocument* document, Work* work);

}  // namespace sluice
