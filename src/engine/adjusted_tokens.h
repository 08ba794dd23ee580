// The tokens of one sequence whose logits are changed by penalties and biases (ops/adjust_logits.h). The
// list grows with the sequence.
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
  // Adds the tokens of `tokens` (prompt and generated) that are new since the last call. `sampling`: a Sequence's. The list holds each token once.
  const std::vector<AdjustedToken>& update(const std::vector<int32_t>& tokens, int64_t prompt_tokens,
                                           const SamplingParams& sampling);
  const std::vector<AdjustedToken>& list() const { return list_; }
  // The list as it would be once `drafts` had followed what update() took in, of a request with penalties.
  std::vector<AdjustedToken> behind(std::span<const int32_t> drafts) const;

 private:
  AdjustedToken& of(int32_t id);
  std::vector<AdjustedToken> list_;
  std::unordered_map<int32_t, size_t> place_;  // token to index in list_
  size_t seen_ = 0;                            // tokens processed so far
  bool begun_ = false;
};

}  // namespace sluice
