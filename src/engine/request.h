// What a caller asks of the engine, and what comes back.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/token_filter.h"

namespace sluice {

constexpr int64_t kTopLogprobsMax = 20;  // as OpenAI's API has it

// Names and defaults are vLLM's; ops/adjust_logits.h and ops/sample.h say what each does.
struct SamplingParams {
  double temperature = 1;  // 0: greedy
  double top_p = 1, min_p = 0;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int64_t max_tokens = 0;  // 0: until the context is full
  std::vector<int32_t> stop_token_ids = {};
  double repetition_penalty = 1;                       // of tokens in the prompt or the answer; 1: none
  double frequency_penalty = 0, presence_penalty = 0;  // of tokens in the answer; 0: none
  std::vector<std::pair<int32_t, float>> logit_bias =
      {};                 // token and what is added to its logit; each token once
  int64_t logprobs = -1;  // so many of the likeliest tokens come with each token; -1: none, and no rank
  // So many come with each token of the prompt from the second on, and its own logprob; -1: neither. Every token of such a prompt is
  // computed: it does not begin behind pages of the prefix cache.
  int64_t prompt_logprobs = -1;

  // Whether a draw needs to know all tokens before it, or changes logits.
  bool adjusts() const { return penalises() || !logit_bias.empty(); }
  bool penalises() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
};
// kInvalidArgument: the parameter, its range or what else was wanted, and what was found.
Status check_sampling(const SamplingParams& sampling, int64_t vocab);
Status check_range(const char* name, double value, double least, double most);

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  SamplingParams sampling = {};
  std::shared_ptr<TokenFilter> filter = {};  // of this request alone; none: every token may come
};

// A request that has ended with an error of its own: no token says so.
struct FailedRequest {
  int64_t request = 0;  // as add() numbered it
  Status status;
};

enum class FinishReason : uint8_t {
  kNone,    // more will come
  kStop,    // the token is one of stop_token_ids
  kLength,  // max_tokens, or the context is full
  kAbort,   // the caller cancelled it
};
constexpr std::string_view text(FinishReason reason) {
  constexpr std::string_view kWords[] = {"none", "stop", "length", "abort"};
  return kWords[static_cast<size_t>(reason)];
}

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

// Of a token that was not drawn: how the model saw it coming.
struct TokenScore {
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  bool operator==(const TokenScore&) const = default;
};

struct GeneratedToken {
  int64_t request = 0;  // as add() numbered it
  int32_t id = 0;
  float logprob =
      0;  // natural logarithm, of the model's distribution: before temperature, penalties, biases and filters
  FinishReason finish = FinishReason::kNone;
  // Where the request asks for logprobs, of the same distribution: the token's place by likelihood, from 1, and the likeliest tokens.
  int32_t rank = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  int64_t cached_tokens = 0;  // of the request's prompt: found in the prefix cache when it began
  // With a request's first token, where it asks for prompt_logprobs: of the prompt's tokens from the second on.
  std::vector<TokenScore> prompt = {};
};

}  // namespace sluice
