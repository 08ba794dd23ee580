// A tokenizer for random weights: it encodes every text, English at about two letters per token, and every token decodes to some text.
#pragma once
#include <cstdint>

#include "base/json.h"

namespace sluice::apps {

// Returns a tokenizer.json with `vocab` tokens: the 256 bytes, then pieces of two and four letters by frequency, then harmony's special
// tokens, which have gpt-oss's ids if the vocabulary is gpt-oss's. kInvalidArgument: the vocabulary is too small.
Result<Json> stand_in_tokenizer(int64_t vocab);
// The matching tokenizer_config.json.
Json stand_in_tokenizer_config(int64_t context);

}  // namespace sluice::apps
