// Flags of other servers whose accepted values depend on the model.
#pragma once
#include <string>
#include <vector>

#include "apps/common/session.h"
#include "text/chat_format.h"

namespace sluice::apps {

// The values as given; empty: the flag is not set.
struct OtherServersFlags {
  std::string reasoning_parser, tool_call_parser, quantization;
};

// A flag may only ask for what the model does anyway. Returns a note on each flag. kInvalidArgument names the flag and its allowed values;
// errors of the model's files are the errors of read_model_config() and Checkpoint::open().
Result<std::vector<std::string>> check_other_servers(const OtherServersFlags& flags, const ModelFlags& model,
                                                     const ChatFormat& format);

}  // namespace sluice::apps
