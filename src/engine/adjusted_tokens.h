// Tokens of one sequence whose logits penalties and biases change (ops/adjust_logits.h): a list that grows with the sequence.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace sluice {

struct AdjustedToken {
  int32_t id = 0;
  int32_t count = 0;  // occurrences in the answer
  float bias = 0;
  bool in_prompt = false;
};

class AdjustedTokens {
 public:
  // Takes in those of `tokens` (prompt and answer) that are new since the last call. Each token is listed once.
  const std::vector<AdjustedToken>& update(const std::vector<int32_t>& tokens, int64_t prompt_tokens,
                                           const SamplingParams& sampling);
  const std::vector<AdjustedToken>& list() const { return list_; }
  // The list as it would be once `drafts` had followed what update() took in, of a request with penalties.
  std::vector<AdjustedToken> behind(std::span<const int32_t> drafts) const;

 private:
  AdjustedToken& of(int32_t id);
  std::vector<AdjustedToken> list_;
  std::unordered_map<int32_t, size_t> place_;  // of a token in the list
  size_t seen_ = 0;                            // tokens that have been taken in
  bool begun_ = false;
};

}  // namespace sluice
