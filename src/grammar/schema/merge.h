// Merges schemas that must hold at once, keyword by keyword.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/leaf.h"
#include "grammar/schema/document.h"
#include "grammar/work.h"

namespace sluice {

enum JsonTypes : uint8_t {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
  kAnyType = 63
};

uint8_t json_type(const std::string& name);  // "integer" gives kNumber; 0: no type
Json type_names(uint8_t types);              // the value of "type" that allows these types
// The types that a value of "type" allows entirely, so kNumber only for "number". *integer: whether it names "integer".
uint8_t whole_types(const Json& value, bool* integer);

using Schemas = std::vector<const Json*>;  // a value must satisfy all of them

// A choice among alternatives: "anyOf", "oneOf", "if", a negation or a dependency in one schema.
struct ChoiceKey {
  const Json* schema;
  std::string keyword;
  auto operator<=>(const ChoiceKey&) const = default;
};
struct Alternative {
  Schemas schemas;
  // Schemas to check on the whole value, because the alternative's grammar rules cannot enforce them.
  Schemas checks = {};
};
using Decisions = std::map<ChoiceKey, Alternative>;

// A dependency between members of an object: with `trigger`, all members in `wanted` must be present, too.
struct Need {
  std::string trigger;
  std::vector<std::string> wanted;
};

struct Merged {
  uint8_t types = kAnyType;
  bool typed = false;  // some schema names a type
  bool never = false;
  // The lists of "enum" and "const", one per schema. A value must be in all of them.
  std::vector<std::span<const Json>> values = {};
  Schemas excluded = {};  // schemas of only "const", "enum", "pattern" or "format" that the value must fail
  NumberBounds number = {};
  int64_t min_length = 0, max_length = -1;
  std::vector<std::string> patterns = {}, formats = {};
  int64_t min_items = 0, max_items = -1, min_members = 0, max_members = -1;
  bool distinct = false, repeated = false;  // distinct: no two elements are equal; repeated: at least two are
  std::vector<std::string> required = {};
  std::vector<const Need*> needs = {};
  // arrays: schemas that constrain elements; objects: schemas that constrain members; effective: schemas that constrain anything.
  Schemas arrays = {}, objects = {}, effective = {};
  Schemas some = {};    // values of kSomeMember
  Schemas nevers = {};  // schemas that the value must fail
  Schemas checks = {};
  uint8_t about = 0;  // types that some keyword constrains
  // A choice that is still to be made.
  std::optional<std::pair<ChoiceKey, std::vector<Alternative>>> pending = {};
};

// How much of a negation the grammar expresses: arrays by counting elements and conditions by their branches, which needs many states and
// combinations; or these by a check of the whole value; or nothing that needs a check, if the negation has other ways. The last one loses values.
enum class Negations : uint8_t { kCounted, kChecked, kNarrow };

inline Status schema_too_long() { return invalid("JSON schema: takes too long to compile"); }
// Returns kInvalidArgument: the keyword `key` does not allow the value `found`.
Status wrong_keyword(const char* key, const char* wanted, const Json& found);

class SchemaMerger {
 public:
  SchemaMerger(SchemaDocument* document, Work* work, Negations negations)
      : document_(document), work_(work), mode_(negations) {}

  // All ways to satisfy `schemas`: one Merged for each combination of choices, without the provably impossible ones. An error names
  // the unsupported keyword.
  Status ways(const Schemas& schemas, std::vector<Merged>* out);
  // Returns true only if it is certain that no value satisfies all of `schemas`.
  bool impossible(const Schemas& schemas, int depth = 0);
  // The types of the values that may satisfy all of `schemas`; other types certainly do not.
  uint8_t possible_types(const Schemas& schemas, int depth);
  // Whether a "not" excludes this value by "const" or "enum".
  bool excludes(const Merged& m, const Json& value);
  // Whether a simpler form of Negations would leave out a part of a negation.
  bool has_simpler_form() const { return has_simpler_form_; }
  // A format that some schema negates although every string may be one of it; empty: there is none.
  const std::string& without_opposite() const { return without_opposite_; }

 private:
  Status ways(const Schemas& schemas, const Decisions& decisions, int depth, std::vector<Merged>* out);
  Result<Merged> merge(const Schemas& schemas, const Decisions& decisions, int depth);
  Status add(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  struct Keywords;
  Status add_values(Keywords* keys);
  Status add_numbers(Keywords* keys);
  Status add_strings(Keywords* keys);
  Status add_arrays(Keywords* keys);
  Status add_objects(Keywords* keys);
  Status add_references(const Json& schema, Schemas* todo);
  Status add_choices(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_not(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_one_of(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  std::vector<std::string> constants_of(const Json& schema, const std::string& name, int depth);
  const Json* apart_by_constant(const Json& list);
  void add_alternatives(const Json& schema, size_t index, std::vector<Alternative>* out);
  Status add_condition(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_dependencies(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions);
  // The dependencies of a keyword on members; "if": none, if "if" and "then" do not only require members.
  const std::vector<Need>& needs_of(const Json& schema, const std::string& keyword);
  // Adds to m->required what required members need, and to `todo` schemas of the objects without the members that need a forbidden one.
  Status settle_needs(Merged* m, Schemas* todo);
  const Json* absent(const std::string& name);  // a schema of the objects without this member
  Status choose(const ChoiceKey& key, std::vector<Alternative> alternatives, Merged* m, Schemas* todo,
                const Decisions& decisions);
  Status check(const Json& schema, Merged* m);
  bool contradicts(const Merged& m, int depth);
  // Whether no member of a closed object can satisfy `some` (a value of kSomeMember).
  bool lacks_member(const Merged& m, const Json& some, int depth);
  // A number that only schemas of the same text share.
  size_t content_of(const Json* schema);
  using List = std::vector<Json>;
  // If a value satisfies one of these schemas, it fails the negated schema. The converse holds, too, for values whose type is not
  // `untold`: if they fail the negated schema, they satisfy at least one of these.
  struct Negation {
    List schemas = {};
    uint8_t untold = 0;
    void add(Negation other) {
      std::move(other.schemas.begin(), other.schemas.end(), std::back_inserter(schemas));
      untold |= other.untold;
    }
  };
  Negation negated(const Json& schema, int depth);
  uint8_t types_that_fail(const Json& schema, int depth);
  bool always_holds(const std::string& key, const Json& value, int depth);
  uint8_t types_of_condition(const Json& schema, int depth);
  void negate_keyword(const Json& schema, const std::string& key, const Json& value, int depth,
                      Negation* out);
  void negate_members(const Json& schema, const std::string& key, const Json& value, Negation* out);
  void negate_any(const Json& any, int depth, Negation* out);
  static void negate_pairs(const Json& list, Negation* out);
  void negate_dependency(const std::string& name, const Json& wanted, int depth, Negation* out);
  void negate_condition(const Json& schema, const Json& condition, Negation* out);
  static void negate_type(const Json& value, Negation* out);
  void negate_elements(const Json& schema, const std::string& key, const Json& value, Negation* out);
  struct Nots {
    Schemas schemas = {};
    uint8_t untold = 0;
    const Json* rest = nullptr;  // a schema of the types that are untold; null: there are none
  };
  const Json* of_types(uint8_t types);  // a schema of all values of these types
  const Nots& nots_of(const Json& schema);
  // The negations of `schema` that are not provably impossible together with `beside`. `rest`: a schema of the values that may fail
  // `schema` in other ways, which only a check of the whole value can tell; null: there is no such value.
  struct WaysNot {
    Schemas schemas = {};
    const Json* rest = nullptr;
    uint8_t rest_types = 0;
  };
  WaysNot ways_not(const Json& schema, const Schemas& beside);
  // A schema of only "type", "required" and "properties" of `schema`, which may make some of its alternatives impossible.
  const Json* beside(const Json& schema);

  SchemaDocument* document_;
  Work* work_;
  Negations mode_;
  bool has_simpler_form_ = false;
  std::string without_opposite_;
  int64_t ways_ = 0;
  std::map<const Json*, std::vector<Alternative>> negations_;
  std::map<const Json*, std::vector<Alternative>> one_ofs_;
  std::map<ChoiceKey, std::vector<Alternative>> dependencies_;
  std::map<ChoiceKey, std::vector<Need>> needs_;
  std::map<std::string, const Json*> absent_;
  std::map<const Json*, const Json*> besides_;
  std::map<const Json*, Nots> nots_;
  std::map<const Json*, const Json*> apart_;  // by list of alternatives
  std::map<const Json*, size_t> contents_;
  std::unordered_map<std::string, size_t> texts_;
};

}  // namespace sluice
