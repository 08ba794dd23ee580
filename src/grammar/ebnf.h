// Grammars as clients write them: GBNF, llama.cpp's notation, and regular expressions that are the whole text.
#pragma once
#include <string_view>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// The text is what the rule "root" matches. kInvalidArgument says what is wrong and where.
Result<Program> compile_ebnf(std::string_view text, Work* work);
// A part that is too large for an automaton becomes rules; look-aheads cannot be in it.
Result<Program> compile_regex(std::string_view pattern, Work* work);
Program compile_texts(const std::vector<std::string>& texts);

}  // namespace sluice
