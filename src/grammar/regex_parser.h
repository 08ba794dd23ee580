// The syntax tree of a regular expression.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/regex.h"

namespace sluice {

struct Regex::Node {
  enum class Kind : uint8_t { kChars, kSequence, kChoice, kRepeat, kBegin, kEnd, kLookAhead, kReference };
  using Pointer = std::shared_ptr<const Node>;
  Kind kind = Kind::kSequence;
  // For kChars; indexed by Bound.
  CharSet chars[2] = {};
  std::vector<Pointer> parts = {};  // of kSequence and kChoice; exactly one for kRepeat and kLookAhead
  int64_t least = 0, most = -1;     // of kRepeat; most < 0: no limit
  bool negative = false;            // of kLookAhead
  std::string name = {};            // of kReference: the name of a grammar rule
};

// Bounds of the parsers of regular expressions and of EBNF: nested groups, and the counts of a repetition.
inline constexpr int kGroupDepthMax = 100;
inline constexpr int64_t kRepeatCountMax = 1'000'000'000;

inline Regex::Node::Pointer shared(Regex::Node node) {
  return std::make_shared<const Regex::Node>(std::move(node));
}

Result<Regex::Node::Pointer> parse_regex(std::string_view pattern);

}  // namespace sluice
