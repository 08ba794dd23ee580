// Describes functions to the model in harmony's form.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_message.h"

namespace sluice {

// A TypeScript namespace under "# Tools" of the developer message. Parts of a schema that TypeScript's types cannot express are omitted.
// kInvalidArgument names the function: its name does not fit in a header, or its parameters are not a JSON object.
// Source: openai/harmony, docs/format.md and src/encoding.rs.
Result<std::string> functions_section(const std::vector<FunctionTool>& functions);

// The header of a call from its channel on: "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>". The arguments follow.
std::string call_header(const std::string& name);

}  // namespace sluice
