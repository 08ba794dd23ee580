// Whether a text can fit in the context, estimated before the text is tokenized.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "text/tokenizer/tokenizer.h"

namespace sluice {

class PromptLimit {
 public:
  PromptLimit(const Tokenizer& tokenizer, int64_t max_model_len) : max_model_len_(max_model_len) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      longest_token_bytes_ = std::max(longest_token_bytes_, std::ssize(tokenizer.piece(id)));
  }
  int64_t max_model_len() const { return max_model_len_; }
  // The minimum number of tokens of a text of that many bytes.
  int64_t fewest_tokens(int64_t bytes) const { return bytes / longest_token_bytes_; }
  // Whether a prompt of `tokens` tokens leaves room for at least one token of the answer.
  bool fits(int64_t tokens) const { return tokens < max_model_len_; }

 private:
  int64_t max_model_len_, longest_token_bytes_ = 1;
};

}  // namespace sluice
