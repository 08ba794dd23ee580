// The tokens to which the penalties and biases of one sequence apply (ops/adjust_logits.h). The list grows
// with the sequence.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace sluice {

struct AdjustedToken {
  int32_t id = 0;
  int32_t count = 0;  // occurrences in the generated tokens
  float bias = 0;
  bool in_prompt = false;
};

class AdjustedTokens {
 public:
  // Updates the list, which holds each token once, with the tokens that are new since the last call.
  // `tokens`: prompt and generated tokens. `sampling`: Sequence::sampling, in which no penalty is absent.
  const std::vector<AdjustedToken>& update(const std::vector<int32_t>& tokens, int64_t prompt_tokens,
                                           const SamplingParams& sampling);
  const std::vector<AdjustedToken>& list() const { return list_; }
  // Only for requests with penalties: returns the list as it would be if `drafts` followed the tokens of the
  // last update().
  std::vector<AdjustedToken> list_after(std::span<const int32_t> drafts) const;

 private:
  AdjustedToken& of(int32_t id);
  std::vector<AdjustedToken> list_;
  std::unordered_map<int32_t, size_t> place_;  // token id to index in list_
  size_t seen_ = 0;                            // tokens processed so far
  bool begun_ = false;
};

}  // namespace sluice
