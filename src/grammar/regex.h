// Regular expressions as JSON Schema and clients write them, to automata.
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
  kSearch,  // some part of it, as the keyword "pattern" means it
};

// Characters of a class repeated, and nothing else: ^[a-z]{1,4000}$. A count can be kept beside an automaton, which then stays small.
struct RepeatedClass {
  CharSet chars;
  int64_t least, most;  // most < 0: no bound
};

// ECMAScript's syntax with Unicode code points as characters, without back references, look-behinds, \b and \B; a look-ahead may not be
// repeated. What ECMAScript and Python read differently is refused, or where it is a class of characters bounded from `bound`'s side.
class Regex {
 public:
  static Result<Regex> parse(std::string_view pattern);
  // kTooLarge: too many states, or no budget left. kInvalidArgument: what is not supported.
  static constexpr Code kTooLarge = Code::kOutOfMemory;
  Result<Dfa> dfa(RegexMatch match, Bound bound, Work* work) const;
  // Set where the expression is ^C{m,n}$, of one class; for kSearch.
  std::optional<RepeatedClass> repeated_class(Bound bound) const;

  struct Node;
  explicit Regex(std::shared_ptr<const Node> root) : root_(std::move(root)) {}
  const Node& root() const { return *root_; }

 private:
  std::shared_ptr<const Node> root_;
};

}  // namespace sluice
