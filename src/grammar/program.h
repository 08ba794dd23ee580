// A grammar as the parser runs it: rules, which are small automata whose steps are other rules or leaves.
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

// Something about a whole value that an automaton does not see, asked when its text has ended.
class ValueCheck {
 public:
  virtual ~ValueCheck() = default;
  virtual bool holds(const std::string& text, Work* work) const = 0;  // false, too, without work left
};

// Names a rule (from 0 on) or a leaf (below 0).
using Callee = int32_t;
inline bool is_leaf(Callee callee) { return callee < 0; }
inline int32_t leaf_index(Callee callee) { return -1 - callee; }

struct Program {
  static constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();
  struct Call {
    Callee callee;
    int32_t to;
    bool counted;   // one more element or member
    bool distinct;  // its text must differ, as a JSON value, from those before it in the same rule
  };
  struct State {
    int32_t rule;
    std::vector<Call> calls = {};
    std::vector<int32_t> empties = {};
    bool final = false;
    // Of the counted calls on the ways to a final state: the fewest, and the most.
    int32_t needs = 0, offers = 0;
  };
  struct Rule {
    int32_t start;
    bool nullable = false;
    int32_t least = 0, most = kNoBound;  // counted calls
    std::shared_ptr<const ValueCheck> check = {};
    bool counted() const { return least > 0 || most != kNoBound; }
  };
  std::vector<State> states;
  std::vector<Rule> rules;
  std::vector<LeafPointer> leaves;
  Callee root = 0;  // a rule

  int32_t add_rule();  // with a start
  int32_t add_state(int32_t rule);
  Callee add_leaf(LeafPointer leaf);
  void add_call(int32_t from, Callee callee, int32_t to, bool counted = false, bool distinct = false);
  void add_empty(int32_t from, int32_t to);
  int32_t start(int32_t rule) const { return rules[static_cast<size_t>(rule)].start; }

  // Takes out what can match nothing, and sets what is derived (nullable, needs, offers). False: the root matches nothing, or no work
  // is left.
  bool finish(Work* work);
  size_t bytes() const;

 private:
  std::vector<uint8_t> productive_rules(Work* work) const;
  void set_nullable(Work* work);
  void set_counts(Work* work);
};

}  // namespace sluice
