// The form of a grammar that the parser runs: each rule is a small automaton whose transitions call other rules or leaves.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/leaf.h"
#include "grammar/work.h"

namespace sluice {

// A condition on a whole value that automata cannot express. Checked at the end of the value's text.
class ValueCheck {
 public:
  virtual ~ValueCheck() = default;
  virtual bool holds(const std::string& text, Work* work) const = 0;  // false also if the budget is spent
};

// A rule (0 and above) or a leaf (below 0).
using Callee = int32_t;
inline bool is_leaf(Callee callee) { return callee < 0; }
inline int32_t leaf_index(Callee callee) { return -1 - callee; }

struct Program {
  static constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();
  struct Call {
    Callee callee;
    int32_t to;
    bool counted;   // counts as one more element or member
    bool distinct;  // its JSON value must differ from the earlier ones of the same rule
  };
  struct State {
    int32_t rule;
    std::vector<Call> calls = {};
    std::vector<int32_t> empties = {};
    bool final = false;
    // The minimum and maximum number of counted calls on paths to a final state.
    int32_t needs = 0, offers = 0;
  };
  struct Rule {
    int32_t start;
    bool nullable = false;
    int32_t least = 0, most = kNoBound;  // limits of the number of counted calls
    std::shared_ptr<const ValueCheck> check = {};
    bool counted() const { return least > 0 || most != kNoBound; }
  };
  std::vector<State> states;
  std::vector<Rule> rules;
  std::vector<LeafPointer> leaves;
  Callee root = 0;  // a rule

  int32_t add_rule();  // with a start state
  int32_t add_state(int32_t rule);
  Callee add_leaf(LeafPointer leaf);
  void add_call(int32_t from, Callee callee, int32_t to, bool counted = false, bool distinct = false);
  void add_empty(int32_t from, int32_t to);
  int32_t start(int32_t rule) const { return rules[static_cast<size_t>(rule)].start; }

  // Removes parts that match nothing and derives nullable, needs and offers. False: the root matches nothing, or the budget is spent.
  bool finish(Work* work);
  size_t bytes() const;

 private:
  std::vector<uint8_t> productive_rules(Work* work) const;
  void set_nullable(Work* work);
  void set_counts(Work* work);
};

}  // namespace sluice
