#include "engine/adjusted_tokens.h"

#include <algorithm>

namespace sluice {

AdjustedToken& AdjustedTokens::of(int32_t id) {
  const auto [at, added] = place_.try_emplace(id, list_.size());
  if (added) list_.push_back({.id = id});
  return list_[at->second];
}

const std::vector<AdjustedToken>& AdjustedTokens::update(const std::vector<int32_t>& tokens,
                                                         int64_t prompt_tokens,
                                                         const SamplingParams& sampling) {
  const auto prompt = static_cast<size_t>(prompt_tokens);
  if (!begun_) {
    begun_ = true;
    for (const auto& [id, bias] : sampling.logit_bias) of(id).bias = bias;
    // Skips the prompt, which may be long, if there is no repetition penalty.
    if (*sampling.repetition_penalty == 1) seen_ = prompt;
  }
  if (!sampling.penalises()) return list_;
  for (; seen_ < tokens.size(); ++seen_) {
    AdjustedToken& token = of(tokens[seen_]);
    if (seen_ < prompt) {
      token.in_prompt = true;
    } else {
      ++token.count;
    }
  }
  return list_;
}

std::vector<AdjustedToken> AdjustedTokens::list_after(std::span<const int32_t> drafts) const {
  std::vector<AdjustedToken> out = list_;
  for (const int32_t id : drafts) {
    const auto known = place_.find(id);
    const auto added = out.begin() + std::ssize(list_);
    const auto at = known != place_.end()
                        ? out.begin() + static_cast<ptrdiff_t>(known->second)
                        : std::find_if(added, out.end(), [&](const AdjustedToken& t) { return t.id == id; });
    if (at == out.end())
      out.push_back({.id = id, .count = 1});
    else
      ++at->count;
  }
  return out;
}

}  // namespace sluice
