// A tokenizer for weights that nobody trained: every text becomes tokens, of English about one for two letters, and every token is some
// text.
#pragma once
#include <cstdint>

#include "base/json.h"

namespace sluice::apps {

// tokenizer.json of `vocab` tokens: the 256 bytes, then pieces of two and four letters, frequent ones first, and harmony's special tokens
// at the end, for gpt-oss's vocabulary where gpt-oss has them. kInvalidArgument: a vocabulary that is too small.
Result<Json> stand_in_tokenizer(int64_t vocab);
// tokenizer_config.json beside it.
Json stand_in_tokenizer_config(int64_t context);

}  // namespace sluice::apps
