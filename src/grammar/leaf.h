// The leaves of a grammar: automata over the bytes of an answer, with a count of characters beside them where a text's length is bounded.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/automaton.h"

namespace sluice {

struct Leaf {
  static constexpr int64_t kNoBound = std::numeric_limits<int32_t>::max();

  Dfa dfa = {};
  // By state: whether the next byte begins a character of the text that is counted, unless it ends the text. Empty: nothing is counted.
  std::vector<uint8_t> counts = {};
  // By state: the fewest characters that lead to acceptance. As long as `counts`.
  std::vector<int32_t> to_end = {};
  int64_t least = 0, most = kNoBound;
  bool counted() const { return !counts.empty(); }
  // Its texts, where there are no more than so many: of an array whose elements must differ.
  static constexpr int32_t kTextsMax = 64;
  std::vector<std::string> texts = {};

  // The state and count behind `byte`; kDead where the leaf has no text that goes on so.
  struct Place {
    int32_t state;
    int64_t count;
  };
  Place step(Place at, uint8_t byte) const {
    Place to{dfa.step(at.state, byte), at.count};
    if (to.state == Dfa::kDead || counts.empty()) return to;
    if (counts[static_cast<size_t>(at.state)] != 0 && byte != '"') ++to.count;
    if (to.count + to_end[static_cast<size_t>(to.state)] > most) to.state = Dfa::kDead;
    return to;
  }
  bool accepts(Place at) const { return dfa.accepts(at.state) && at.count >= least; }
};
using LeafPointer = std::shared_ptr<const Leaf>;

// JSON text of strings. `value`: of the strings' values; each character is written as itself, but for '"', '\' and controls, which are
// escaped. Lengths are in characters; most < 0: no bound. No value: no budget left.
std::optional<Leaf> json_strings(const Dfa& value, int64_t least, int64_t most, Work* work);
// Any string, in any of JSON's spellings, surrogates in pairs.
Leaf any_json_string(int64_t least = 0, int64_t most = -1);
// A word of `texts` as it stands.
Leaf texts_leaf(const std::vector<std::string>& texts);
// 0 to 40 blanks behind (or before) `mark`: a model must not write blanks for ever.
Leaf mark_and_blanks(const std::string& mark);
Leaf blanks_and_mark(const std::string& mark);
Leaf blanks();  // 1 to 40

// A decimal number as it is written, without an exponent: no rounding on the way from a schema to its automaton.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction = "";  // digits, without zeros that say nothing
  static std::optional<Decimal> of(const Json& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_double() const;  // a double has this value, for example 0.25, but not 0.1
  Decimal operator-() const { return {is_zero() ? false : !negative, whole, fraction}; }
};
int compare(const Decimal& a, const Decimal& b);  // below, at or above 0

struct NumberBounds {
  std::optional<Decimal> least = {}, most = {};
  bool least_excluded = false, most_excluded = false;
  bool integer = false, fraction = false;  // an integer; no integer
  std::vector<Decimal> multiples = {};
};
// Numbers; without an exponent if they are bounded at all. kInvalidArgument: multiples that cannot be kept, or no budget left.
Result<Dfa> json_numbers(const NumberBounds& bounds, Work* work);

// The strings of a format of JSON Schema, for example "date": a subset of what checkers take (null: not one of those that are kept), or
// all that any of them may take (null, too: any string).
const Dfa* format_values(const std::string& format, Bound bound = Bound::kInner);

}  // namespace sluice
