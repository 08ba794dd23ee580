// What a value must be by several schemas at once, keyword by keyword.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
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

uint8_t json_type(const std::string& name);  // "integer" is kNumber; 0: no type

using Schemas = std::vector<const Json*>;  // all of them hold

// One choice among alternatives: "anyOf", "oneOf", "if", a negation or a dependency of one schema.
struct ChoiceKey {
  const Json* schema;
  std::string keyword;
  auto operator<=>(const ChoiceKey&) const = default;
};
struct Alternative {
  Schemas schemas;
  // Schemas that must be asked about the whole value, since the choice alone does not keep them.
  Schemas checks = {};
};
using Decisions = std::map<ChoiceKey, Alternative>;

struct Merged {
  uint8_t types = kAnyType;
  bool typed = false;  // some schema says a type
  bool never = false;
  // Of "enum" and "const": each schema's list. A value is in all of them.
  std::vector<std::span<const Json>> values = {};
  Schemas excluded = {};  // {"const"}, {"enum"}, {"pattern"} or {"format"} that must not hold
  NumberBounds number = {};
  int64_t least_length = 0, most_length = -1;
  std::vector<std::string> patterns = {}, formats = {};
  int64_t least_items = 0, most_items = -1, least_members = 0, most_members = -1;
  bool distinct = false;
  std::vector<std::string> required = {};
  // Schemas that say something about elements, members and strings; and those that say anything at all.
  Schemas arrays = {}, objects = {}, effective = {};
  Schemas checks = {};
  uint8_t about = 0;  // types that keywords are about
  // Not decided yet.
  std::optional<std::pair<ChoiceKey, std::vector<Alternative>>> pending = {};
};

// kInvalidArgument: a keyword's value is none that the keyword takes.
Status wrong_keyword(const char* key, const char* wanted, const Json& found);

class SchemaMerger {
 public:
  SchemaMerger(SchemaDocument* document, Work* work) : document_(document), work_(work) {}

  // All ways to satisfy `schemas`: one Merged for each combination of choices that is not seen to be impossible. Errors name the
  // keyword that cannot be kept.
  Status ways(const Schemas& schemas, std::vector<Merged>* out);
  // Whether no value satisfies all of `schemas`: true only if that is sure.
  bool impossible(const Schemas& schemas, int depth = 0);
  // Whether "not" has this value in a "const" or "enum".
  bool excludes(const Merged& m, const Json& value);

 private:
  Status ways(const Schemas& schemas, const Decisions& decisions, int depth, std::vector<Merged>* out);
  Result<Merged> merge(const Schemas& schemas, const Decisions& decisions, int depth);
  Status add(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_choices(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_not(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_one_of(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  void add_alternatives(const Json& schema, size_t index, std::vector<Alternative>* out);
  Status add_condition(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions, int depth);
  Status add_dependencies(const Json& schema, Merged* m, Schemas* todo, const Decisions& decisions);
  Status choose(const ChoiceKey& key, std::vector<Alternative> alternatives, Merged* m, Schemas* todo,
                const Decisions& decisions);
  Status check(const Json& schema, Merged* m);
  bool contradicts(const Merged& m, int depth);
  using List = std::vector<Json>;
  // Schemas of which each implies that another one does not hold. `complete`: whenever it does not hold, one of them does.
  struct Negation {
    List schemas = {};
    bool complete = true;
    void add(Negation other) {
      std::move(other.schemas.begin(), other.schemas.end(), std::back_inserter(schemas));
      complete &= other.complete;
    }
  };
  Negation negated(const Json& schema, int depth);
  void negate_keyword(const Json& schema, const std::string& key, const Json& value, int depth,
                      Negation* out);
  void negate_any(const Json& any, int depth, Negation* out);
  static void negate_type(const Json& value, Negation* out);
  struct Nots {
    Schemas schemas = {};
    bool complete = true;
  };
  const Nots& nots_of(const Json& schema);
  // Those of them that are not seen to be impossible with `beside`. No value: whether `schema` fails can only be asked of a value.
  std::optional<Schemas> ways_not(const Json& schema, const Schemas& beside);
  // What stands beside the choices of a schema and may tell them apart.
  const Json* beside(const Json& schema);

  SchemaDocument* document_;
  Work* work_;
  int64_t ways_ = 0;
  std::map<const Json*, std::optional<std::vector<Alternative>>> negations_;
  std::map<const Json*, std::vector<Alternative>> one_ofs_;
  std::map<const Json*, const Json*> besides_;
  std::map<const Json*, Nots> nots_;
};

}  // namespace sluice
