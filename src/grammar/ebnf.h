// Compiles grammars that clients write: GBNF (llama.cpp's notation), and regular expressions that match the whole text.
#pragma once
#include <string_view>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// The rule "root" matches the whole text. The message of kInvalidArgument names the error and its position.
Result<Program> compile_ebnf(std::string_view text, Work* work);
// Parts that are too large for one automaton become rules; such a part must not contain '^', '$' or a look-ahead.
Result<Program> compile_regex(std::string_view pattern, Work* work);
Program compile_texts(const std::vector<std::string>& texts);

}  // namespace sluice
