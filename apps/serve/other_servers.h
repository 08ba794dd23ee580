// Flags of other servers whose accepted values depend on the model.
#pragma once
#include <string>
#include <vector>

#include "apps/common/session.h"
#include "text/chat_format.h"

namespace sluice::apps {

// The values of the flags; empty: the flag was not given.
struct OtherServersFlags {
  std::string reasoning_parser, tool_call_parser, quantization;
};

// Checks that the flags only ask for what Sluice does with the model anyway. Returns a note about each flag. The message of kInvalidArgument
// names the flag and its allowed values. Also returns the errors of read_model_config() and Checkpoint::open().
Result<std::vector<std::string>> check_other_servers(const OtherServersFlags& flags, const ModelFlags& model,
                                                     const ChatFormat& format);

}  // namespace sluice::apps
