// A tokenizer for random weights. It encodes every text, and English with about two letters per token. Every token decodes to some text.
#pragma once
#include <cstdint>

#include "base/json.h"

namespace sluice::apps {

// Returns a tokenizer.json with `vocab` tokens: the 256 bytes, then words of two, four and six letters as far as there is room, then harmony's
// special tokens. The special tokens have gpt-oss's ids if `vocab` is gpt-oss's vocabulary size. kInvalidArgument: `vocab` is too small.
Result<Json> stand_in_tokenizer(int64_t vocab);
// The matching tokenizer_config.json.
Json stand_in_tokenizer_config(int64_t context);

}  // namespace sluice::apps
