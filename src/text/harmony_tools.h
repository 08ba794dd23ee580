// Describes functions to the model in harmony's form.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "text/chat_message.h"

namespace sluice {

// The section "# Tools" of the developer message, which has a TypeScript namespace. Parts of a schema that TypeScript's types cannot express
// are omitted. kInvalidArgument: the name of a function does not fit in a header, or its parameters are not a JSON object. The message names
// the function. Source: openai/harmony, docs/format.md and src/encoding.rs.
Result<std::string> functions_section(const std::vector<FunctionTool>& functions);

// The part of a call's header that follows the role: "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>".
std::string call_header(const std::string& name);

}  // namespace sluice
