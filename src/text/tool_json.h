// Functions in the form that chat templates expect.
#pragma once
#include "base/json.h"
#include "base/status.h"
#include "text/chat_message.h"

namespace sluice {

// The parameters in the order of their text; {} if there are none. kInvalidArgument names the function.
Result<OrderedJson> parameters_json(const FunctionTool& function);
// {"type": "function", "function": {"name", "description", "parameters"}} without the members that are empty. Fails like
// parameters_json().
Result<OrderedJson> tool_json(const FunctionTool& function);

}  // namespace sluice
