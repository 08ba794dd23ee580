// The leaves of a grammar: automata over the bytes of an answer, with a character count where the length of a text is bounded.
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
  // By state: whether the next byte, unless it is the closing quote, begins a counted character. Empty: the leaf counts nothing.
  std::vector<uint8_t> counts = {};
  // By state: the minimum and maximum number of characters up to acceptance; kNoBound: no maximum. As long as `counts`.
  std::vector<int32_t> to_end = {}, to_last_end = {};
  // By state, `length_words` each: bit n is set if acceptance is n characters away. Empty if it is as far away as any number in
  // [to_end, to_last_end], and if the table would be large.
  std::vector<uint64_t> lengths = {};
  int64_t length_words = 0;
  int64_t least = 0, most = kNoBound;
  bool counted() const { return !counts.empty(); }
  // Whether `least` limits which states can be reached, and not only where the text may end.
  bool least_steers = false;
  // All texts of the leaf, if there are at most kTextsMax. Needed for arrays with unique elements.
  static constexpr int32_t kTextsMax = 256;
  std::vector<std::string> texts = {};
  // Set only for leaves of blanks, or of a mark such as ',' with optional blanks: the text in single-line JSON, where `spaced` has the usual
  // blanks and `compact` has none.
  std::string spaced = {}, compact = {};
  bool is_blanks = false;

  // The state and count after `byte`; kDead if no text of the leaf continues with it.
  struct Place {
    int32_t state;
    int64_t count;
  };
  Place step(Place at, uint8_t byte) const {
    Place to{dfa.step(at.state, byte), at.count};
    if (to.state == Dfa::kDead || counts.empty()) return to;
    if (counts[static_cast<size_t>(at.state)] != 0 && byte != '"') ++to.count;
    if (!can_end(to)) to.state = Dfa::kDead;
    return to;
  }
  // Whether a text with a length within the bounds continues from here.
  bool can_end(Place at) const;
  bool accepts(Place at) const { return dfa.accepts(at.state) && at.count >= least; }
};
using LeafPointer = std::shared_ptr<const Leaf>;

// Strings as JSON text. `value` accepts the decoded values. Only '"', '\' and control characters are escaped. Lengths are in characters;
// most < 0: no limit. nullopt: the budget is spent.
std::optional<Leaf> json_strings(const Dfa& value, int64_t least, int64_t most, Work* work);
// Any string, with any escapes that JSON allows; surrogates must be in pairs.
Leaf any_json_string(int64_t least = 0, int64_t most = -1);
// Exactly `texts`, unescaped.
Leaf texts_leaf(const std::vector<std::string>& texts);
// 0 to 40 blanks after (or before) `mark`. The limit keeps a model from writing blanks forever.
Leaf mark_and_blanks(const std::string& mark);
Leaf blanks_and_mark(const std::string& mark);
Leaf blanks();  // 1 to 40

// A decimal number in exact form, without an exponent, so that a schema's bounds are never rounded.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction = "";  // digits without redundant zeros
  static std::optional<Decimal> of(const Json& number);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  bool is_double() const;  // a double can represent the value: 0.25, but not 0.1
  Decimal operator-() const { return {is_zero() ? false : !negative, whole, fraction}; }
};
int compare(const Decimal& a, const Decimal& b);  // negative, 0 or positive
bool is_multiple(const Decimal& value, const Decimal& of);

struct NumberBounds {
  std::optional<Decimal> least = {}, most = {};
  bool min_excluded = false, max_excluded = false;
  bool integer = false, fraction = false;  // must be an integer; must not be an integer
  std::vector<Decimal> multiples = {};
  std::vector<Decimal> not_multiples = {};  // left out as far as an automaton of their multiples exists
  bool none() const {
    return !least && !most && !integer && !fraction && multiples.empty() && not_multiples.empty();
  }
};
// JSON numbers; bounded numbers have no exponent. kInvalidArgument: the multiples are not supported, or the budget is spent.
Result<Dfa> json_numbers(const NumberBounds& bounds, Work* work);

// The strings of a JSON Schema format such as "date". kInner: only strings that every checker accepts; null if the format is not supported.
// kOuter: every string that some checker accepts; null if these are all strings.
const Dfa* format_values(const std::string& format, Bound bound = Bound::kInner);

}  // namespace sluice
