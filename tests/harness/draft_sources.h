// Drafts of known quality: right, wrong, or right from time to time.
#pragma once
#include <algorithm>
#include <map>
#include <vector>

#include "base/random.h"
#include "engine/scheduler.h"

namespace sluice::test {

// Knows each request's answer without drafts, by its prompt.
class KnownAnswers final : public DraftSource {
 public:
  enum class Kind : uint8_t { kRight, kWrong, kMixed };
  KnownAnswers(Kind kind, int32_t vocab) : kind_(kind), vocab_(vocab) {}
  void learn(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    answers_[prompt] = answer;
  }
  std::vector<int32_t> propose(Sequence* s, int64_t most, int64_t*) override {
    const auto prompt_end = s->tokens.begin() + s->prompt_tokens;
    const auto known = answers_.find({s->tokens.begin(), prompt_end});
    if (known == answers_.end()) return {};
    const std::vector<int32_t>& answer = known->second;
    const auto done = s->tokens.end() - prompt_end;
    const auto end = std::min<int64_t>(std::ssize(answer), done + most);
    if (done >= end) return {};
    std::vector<int32_t> out(answer.begin() + done, answer.begin() + end);
    for (int32_t& id : out)
      if (kind_ == Kind::kWrong || (kind_ == Kind::kMixed && random_.integer(0, 2) == 0))
        id = (id + 1) % vocab_;
    return out;
  }

 private:
  Kind kind_;
  int32_t vocab_;
  Random random_{17};
  std::map<std::vector<int32_t>, std::vector<int32_t>> answers_;
};

inline SpeculationOptions speculation_of(std::shared_ptr<DraftSource> source, int64_t drafts) {
  return {.method = DraftMethod::kNgram,
          .num_speculative_tokens = drafts,
          .prompt_lookup_min = 1,
          .prompt_lookup_max = 3,
          .by_cost = false,
          .source = std::move(source)};
}

}  // namespace sluice::test
