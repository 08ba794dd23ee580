// What needs no compiler of grammars.
#include "grammar/grammar.h"

namespace sluice {

GrammarSource any_json_object() {
  return {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"object","additionalProperties":true})"};
}

GrammarSource one_of_strings(std::span<const std::string> strings) {
  std::string text = "root ::= ";
  for (const std::string& s : strings) {
    text += &s == strings.data() ? "\"" : " | \"";
    for (const char c : s) {
      if (c == '"' || c == '\\') text += '\\';
      if (c == '\n' || c == '\r')
        text += c == '\n' ? "\\n" : "\\r";
      else
        text += c;
    }
    text += '"';
  }
  return {.kind = GrammarKind::kEbnf, .text = std::move(text)};
}

}  // namespace sluice
