// Parses a GBNF grammar into one tree per rule.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/regex_parser.h"

namespace sluice {

using EbnfRules = std::map<std::string, Regex::Node::Pointer, std::less<>>;
// Every referenced name is a rule, and the rule "root" exists.
Result<EbnfRules> parse_ebnf(std::string_view text);

}  // namespace sluice
