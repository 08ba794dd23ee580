// The post_processor of a tokenizer.json.
#pragma once
#include "base/json.h"
#include "text/tokenizer/data.h"

namespace sluice {

// Reads the tokens that the post-processor adds to a text. `data` must already have the vocabulary.
Result<SpecialEnds> read_post_processor(const JsonAt& root, const Tokenizer::Data& data);

}  // namespace sluice
