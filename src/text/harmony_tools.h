// Functions that a model may call, as harmony describes them.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_message.h"

namespace sluice {

// A namespace of TypeScript, under "# Tools" of the developer message. What the schema language has and TypeScript's types have not is
// left out. kInvalidArgument names the function: a name that no header can hold, parameters that are no JSON object.
// Source: openai/harmony, docs/format.md and src/encoding.rs.
Result<std::string> functions_section(const std::vector<FunctionTool>& functions);

// The header of a call, from its channel on: "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>". The arguments follow.
std::string call_header(const std::string& name);

}  // namespace sluice
