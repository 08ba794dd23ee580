// The grammar rules of a schema's values, arrays and objects.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/program.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/merge.h"

namespace sluice {

// The names of members that are not listed individually, grouped by the patterns that they match.
struct OtherNames {
  struct Kind {
    std::vector<std::string> few = {};  // all names of the kind; empty if `leaf` matches them
    LeafPointer leaf = {};
    std::shared_ptr<const Dfa> names = {};  // of `leaf`
    Schemas schemas = {};                   // the schemas of the patterns that the names match
    std::set<const Json*> matched = {};     // the schemas that contain these patterns
  };
  std::vector<Kind> kinds = {};
  Schemas checks = {};  // "propertyNames" that must be checked on the whole name
};

class SchemaCompiler {
 public:
  SchemaCompiler(std::shared_ptr<SchemaDocument> document, Work* work, Negations negations);
  Result<Program> whole(bool object);
  bool matches_nothing() const { return matches_nothing_; }  // why whole() failed
  bool has_simpler_form() const { return merger_.has_simpler_form(); }

 private:
  friend class ArrayRules;
  friend class ObjectRules;
  Callee common(const LeafPointer& leaf);
  Callee never();
  // A rule or leaf whose value is checked at its end.
  Callee checked(Callee value, Schemas checks);
  Result<Callee> callee(Schemas schemas);
  // Like callee(), but one callee per type. Where values must be unique, this allows leaving out used values of types with few values.
  Result<std::vector<Callee>> callees(const Schemas& schemas);
  void infer_types(Merged* m);
  Status rule_of(const Schemas& schemas, int32_t rule);
  std::optional<std::vector<std::string>> texts_that_hold(const Leaf& leaf, const Schemas& checks);
  Result<Schemas> checks_of(const Merged& m);
  Status way(const Merged& m, const Schemas& schemas, int32_t from, int32_t to);
  Result<std::vector<LeafPointer>> scalars(const Merged& m, const Schemas& schemas);

  std::shared_ptr<SchemaDocument> document_;
  Work* work_;
  bool matches_nothing_ = false;
  bool inferred_ = false;  // some schema without "type" was restricted to types
  SchemaMerger merger_;
  Program program_;
  Result<LeafPointer> string(const Merged& m);
  Callee name(const std::string& name);  // a member's name and its colon

  std::map<const Leaf*, Callee> common_;
  std::map<std::string, LeafPointer> strings_;  // by all constraints of the string
  std::map<std::string, Callee> names_;
  // By the listed names, and by the schemas with "patternProperties" or "propertyNames".
  std::map<std::pair<std::set<std::string>, Schemas>, OtherNames> other_names_;
  std::map<const Json*, std::set<const Json*>> parts_;
  // The schemas that apply to the same value as `schema`, including `schema` itself: through allOf, $ref and similar keywords.
  const std::set<const Json*>& parts_of(const Json* schema);
  std::vector<LeafPointer> kept_leaves_;  // keeps the addresses unique
  std::map<Schemas, Callee> rules_;
  std::map<Schemas, std::vector<Callee>> kinds_;
  std::map<int32_t, std::vector<Merged>> ways_;  // of rules that are not built yet
  std::vector<std::pair<Schemas, int32_t>> todo_;
};

class ArrayRules {
 public:
  explicit ArrayRules(SchemaCompiler* compiler) : c_(*compiler), program_(compiler->program_) {}
  Result<Callee> rule(const Merged& m);

 private:
  // One schema's "contains", which `least` to `most` elements must match; most < 0: no limit.
  struct Contained {
    const Json *schema = nullptr, *negated = nullptr;
    int64_t least = 0, most = -1;
    // The largest count. Further matches are not counted if there is no maximum, and not allowed otherwise.
    int64_t last() const { return most >= 0 ? most : least; }
  };
  // One way to continue an array. A layer encodes, for each "contains", the number of matches so far.
  struct Choice {
    Schemas wanted;
    size_t layer;
    bool progress;  // some count gets closer to its minimum
  };
  Status list_contained(const Merged& m, size_t prefix);
  bool is_enough(size_t layer) const;
  std::vector<Choice> choices(size_t layer, const Schemas& any) const;
  // The schemas of the element at `index`. They are the same for every index beyond all prefixes.
  Schemas element(const Merged& m, size_t index);
  const Json* unevaluated_by(const Merged& m, const Json& schema, size_t index);
  Status add_element(const Merged& m, const Schemas& wanted, int32_t from, int32_t to, bool may_end);
  void add_value(const Merged& m, const std::vector<Callee>& callees, Among among, int32_t from, int32_t to,
                 bool may_end);
  SchemaCompiler& c_;
  Program& program_;
  std::vector<Contained> contained_;
  int32_t end_ = -1;    // the final state of the array
  bool alike_ = false;  // all elements have the same schemas
};

// Whether some schema of the object declares a member.
bool declares_members(const Merged& m);
// Whether the object may have members that no schema declares, even if it does not need them.
bool takes_others(const Merged& m);

class ObjectRules {
 public:
  explicit ObjectRules(SchemaCompiler* compiler) : c_(*compiler), program_(compiler->program_) {}
  Result<Callee> rule(const Merged& m);

 private:
  struct Member {
    std::string name;
    Callee value;
    Schemas schemas;  // of the value
    bool required;
    bool unasked = false;  // present only if other members need it
  };
  // Members whose names are not listed. All names of one kind (OtherNames) have the same schemas.
  struct Others {
    const OtherNames::Kind* kind;
    Callee value;
    Schemas schemas;  // of the value
  };
  // A way to read one of Others: its name, and the layer of the state after it.
  struct OtherWay {
    Callee name, value;
    size_t layer;
  };
  Status list_members(const Merged& m);
  // Adds the members that only dependencies name, and removes members that cannot have the members they need.
  Status list_needed(const Merged& m, std::set<std::string>* listed);
  // The dependencies between members_; null: there are none. `numbers`: the number of each member in them, or -1.
  std::shared_ptr<Dependencies> dependencies(const Merged& m, std::vector<int32_t>* numbers) const;
  Status add_member(const Merged& m, const std::string& name, bool required);
  Result<Schemas> of_name(const Merged& m, const std::string& name);
  Schemas unevaluated_by(const Merged& m, const std::set<const Json*>& evaluated);
  Status list_others(const Merged& m);
  Status add_others(const Merged& m, const OtherNames::Kind& kind, const Schemas& schemas);
  Result<bool> is_named_well(const Merged& m, const std::string& name);
  Status add_names(const Json& names, Dfa* all, Schemas* checks);
  Result<const OtherNames*> other_names(const Merged& m, const std::set<std::string>& listed);
  // Whether a member with this name can satisfy `some` (a value of kSomeMember).
  Result<bool> is_some(const Json& some, const std::string& name);
  // Whether some value of m.some is not satisfied by any listed member.
  Result<bool> lacks_some(const Merged& m);
  // Ways to read a value in a layer of the object's states. A layer is the set of the values of m.some that earlier members satisfy.
  Result<std::vector<std::pair<Callee, size_t>>> ways_of(const Merged& m, const Member& one, size_t layer);
  Result<std::vector<OtherWay>> ways_of(const Merged& m, const Others& others, size_t layer);
  Result<Callee> build(const Merged& m);
  Status build_layer(const Merged& m, const std::vector<int32_t>& numbers, size_t layer);

  SchemaCompiler& c_;
  Program& program_;
  std::vector<Member> members_;
  std::vector<Others> others_;
  Schemas name_checks_;
  bool never_ = false;
  // By layer and member i: the state before the name of member i or of a later member, and the state after a member that precedes member i;
  // the object may end there, or a comma leads to names_[layer][i].
  std::vector<std::vector<int32_t>> names_, after_;
  int32_t end_ = -1;
};

}  // namespace sluice
