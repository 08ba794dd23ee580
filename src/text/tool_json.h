// Functions in the form that chat templates expect.
#pragma once
#include "base/json.h"
#include "base/status.h"
#include "text/chat_message.h"

namespace sluice {

// The schema of the parameters with its keys in their original order; {} if there is none. The message of kInvalidArgument names the function.
Result<OrderedJson> parameters_json(const FunctionTool& function);
// {"type": "function", "function": {"name", "description", "parameters"}} without empty members. Returns the errors of
// parameters_json().
Result<OrderedJson> tool_json(const FunctionTool& function);

}  // namespace sluice
