// Compiles regular expressions, as JSON Schema and clients write them, to automata.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "grammar/automaton.h"

namespace sluice {

enum class RegexMatch : uint8_t {
  kWhole,   // the whole text
  kSearch,  // some part of the text, as in the keyword "pattern"
};

// An expression that only repeats a character class, such as ^[a-z]{1,4000}$. A counter in place of 4000 copies keeps the automaton small.
struct RepeatedClass {
  CharSet chars;
  int64_t least, most;  // most < 0: no limit
};

// ECMAScript syntax over Unicode code points, without back references, look-behinds, \b and \B; a look-ahead must not be repeated. Syntax
// that ECMAScript and Python read differently is rejected; character classes that they read differently get the set of `bound`
// (char_set.h).
class Regex {
 public:
  static Result<Regex> parse(std::string_view pattern);
  // kTooLarge: too many states, or the budget is spent. kInvalidArgument: unsupported syntax.
  static constexpr Code kTooLarge = Code::kOutOfMemory;
  Result<Dfa> dfa(RegexMatch match, Bound bound, Work* work) const;
  // The class and counts of an expression of the form ^C{m,n}$, where RegexMatch is kSearch; nullopt for other expressions.
  std::optional<RepeatedClass> repeated_class(Bound bound) const;

  struct Node;
  explicit Regex(std::shared_ptr<const Node> root) : root_(std::move(root)) {}
  const Node& root() const { return *root_; }

 private:
  std::shared_ptr<const Node> root_;
};

}  // namespace sluice
