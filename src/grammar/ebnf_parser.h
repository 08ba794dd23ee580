// The rules of a grammar in GBNF, as trees.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/regex_parser.h"

namespace sluice {

using EbnfRules = std::map<std::string, Regex::Node::Pointer, std::less<>>;
// All names that are used are rules, and "root" is one.
Result<EbnfRules> parse_ebnf(std::string_view text);

}  // namespace sluice
