// An answer of sluice run as JSON.
#pragma once
#include <string>

#include "chat/reply.h"

namespace sluice::apps {

// The tokenizer says what tokens with log probabilities are.
std::string reply_json(const Reply& reply, const Tokenizer& tokenizer);

}  // namespace sluice::apps
