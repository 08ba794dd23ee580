// The form of a grammar that the parser runs: each rule is a small automaton whose transitions call other rules or leaves.
#pragma once
#include <bitset>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/leaf.h"
#include "grammar/work.h"

namespace sluice {

// A condition on a whole value that automata cannot express. Checked at the end of the value's text.
class ValueCheck {
 public:
  virtual ~ValueCheck() = default;
  virtual bool holds(const std::string& text, Work* work) const = 0;  // also false if the budget is spent
};

// A rule (0 and above) or a leaf (below 0).
using Callee = int32_t;
inline bool is_leaf(Callee callee) { return callee < 0; }
inline int32_t leaf_index(Callee callee) { return -1 - callee; }

// How the JSON value of a call relates to the values of the rule's earlier calls.
enum class Among : uint8_t {
  kAny,
  kNoted,     // any value; later calls may have to repeat it
  kNew,       // a value that differs from all earlier ones
  kRepeated,  // an earlier value
};

// Adds a number to a hash.
inline uint64_t mix(uint64_t h, uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccd;
}
// The hash of a JSON value's text, the same for all spellings of the value.
uint64_t hash_of_value(std::string_view text);

// Dependencies between the members of an object: with one member others must be present, too. The members that take part are numbered in
// the order in which the object's rule reads them.
struct Dependencies {
  static constexpr size_t kMax = 512;
  using Members = std::bitset<kMax>;
  std::vector<Members> wanted =
      {};                 // by member: all members that must be present with it, directly or not, and itself
  Members required = {};  // present in every object, with all that they want
  Members never = {};     // cannot be present
  Members unasked = {};   // present only if other members want them
};

struct Program {
  static constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();
  struct Call {
    Callee callee;
    int32_t to;
    bool counted;  // counts as one more element or member
    Among among = Among::kAny;
    int32_t member = -1;  // the number of the member in Dependencies whose value this call reads
    bool distinct() const { return among == Among::kNew; }
  };
  struct State {
    int32_t rule;
    std::vector<Call> calls = {};
    std::vector<int32_t> empties = {};
    bool final = false;
    // The minimum and maximum number of counted calls on paths to a final state.
    int32_t needs = 0, offers = 0;
    // Of rules with dependencies: `passed` members are decided here, those without which the text came here are absent; `open` is a member
    // whose name is read, but not its value; `must`: another member follows. The last two are `needs` and `offers` without the members of
    // Dependencies.
    int32_t passed = 0, open = -1;
    bool must = false;
    int32_t others_needed = 0, others_offered = 0;
  };
  struct Rule {
    int32_t start;
    bool nullable = false;
    int32_t least = 0, most = kNoBound;  // limits of the number of counted calls
    bool distinct = false;               // some call needs a new value, and few values exist
    std::shared_ptr<const ValueCheck> check = {};
    std::shared_ptr<Dependencies> dependencies = {};
    bool counted() const { return least > 0 || most != kNoBound; }
  };
  std::vector<State> states;
  std::vector<Rule> rules;
  std::vector<LeafPointer> leaves;
  // By leaf: hashes of all its values. Empty if no call that needs a new value uses the leaf, or if the leaf has too many values.
  std::vector<std::vector<uint64_t>> values;
  // By hash in `values`: the kind of the value. Two values have the same kind if exactly the same leaves accept them.
  std::unordered_map<uint64_t, uint64_t> kinds;
  Callee root = 0;       // a rule
  bool refuses = false;  // the end of some rule's value may be rejected: by a check, or because the value is
                         // not new
  bool checks = false;   // some rule has a check

  int32_t add_rule();  // with a start state
  int32_t add_state(int32_t rule);
  Callee add_leaf(LeafPointer leaf);
  void add_call(int32_t from, Callee callee, int32_t to, bool counted = false, Among among = Among::kAny);
  void add_empty(int32_t from, int32_t to);
  int32_t start(int32_t rule) const { return rules[static_cast<size_t>(rule)].start; }

  // Removes parts that match nothing and derives nullable, needs and offers. False: the root matches nothing, or the budget is spent.
  bool finish(Work* work);
  size_t bytes() const;
  // Whether the rule can still reach its minimum of counted calls without exceeding its maximum.
  bool fits(int32_t state, int64_t count) const {
    const State& s = states[static_cast<size_t>(state)];
    const Rule& rule = rules[static_cast<size_t>(s.rule)];
    return !rule.counted() || (count + s.needs <= rule.most && count + s.offers >= rule.least);
  }

  // Whether an object can still end with all dependencies met. Its text came to `state` with the members `present`, which want `wanted`, and
  // `count` members in total. May be true by mistake only if the budget is spent, or where members depend on each other in rings and their
  // number has both bounds.
  bool meets(int32_t state, const Dependencies::Members& present, const Dependencies::Members& wanted,
             int64_t count, Work* work) const;

 private:
  bool drop_unproductive(Work* work, bool* changed);
  bool drop_unmet(Work* work);
  struct Arrow;
  bool offers_least(const Rule& rule, const std::vector<std::vector<Arrow>>& into,
                    const std::vector<int32_t>& finals, int32_t size, Work* work) const;
  std::vector<uint8_t> productive_rules(Work* work) const;
  void set_nullable(Work* work);
  void set_counts(Work* work);
  void set_values(Work* work);
  void limit_by_values(const std::unordered_map<Callee, int64_t>& counts);
  void list_few(Work* work);
};

}  // namespace sluice
