// JSON output of sluice run.
#pragma once
#include <string>

#include "chat/reply.h"

namespace sluice::apps {

// The tokenizer provides the texts of the tokens in lists of log probabilities.
std::string reply_json(const Reply& reply, const Tokenizer& tokenizer);

}  // namespace sluice::apps
