// Functions that a model may call, as harmony describes them.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice {

bool is_function_name(const std::string& name);  // 1 to 64 letters, digits, "_" and "-"

struct FunctionTool {
  std::string name;  // is_function_name()
  std::string description = {};
  // A JSON schema, its members in the order in which they are to be shown. Empty: no parameters.
  std::string parameters = {};
  // The schema that arguments are held to: the parameters, and an object. Empty: any object.
  std::string arguments = {};
  bool strict = false;  // arguments must match the schema
};

// A namespace of TypeScript, under "# Tools" of the developer message. What the schema language has and TypeScript's types have not is
// left out. kInvalidArgument names the function: a name that no header can hold, parameters that are no JSON object.
// Source: openai/harmony, docs/format.md and src/encoding.rs.
Result<std::string> functions_section(const std::vector<FunctionTool>& functions);

// The header of a call, from its channel on: "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>". The arguments follow.
std::string call_header(const std::string& name);
// Whom a call of a function is for: "functions.NAME".
std::string function_recipient(const std::string& name);
// The function that a recipient names; empty: none.
std::string called_function(const std::string& recipient);

}  // namespace sluice
