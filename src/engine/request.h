// Requests to the engine, and the tokens that it returns.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/token_filter.h"

namespace sluice {

struct GenerationDefaults;

constexpr int64_t kTopLogprobsMax = 20;  // as in OpenAI's API

// How an answer is sampled. Names match vLLM; ops/adjust_logits.h and ops/sample.h define the effects.
// complete() replaces absent values by a model's defaults, unless the comment of a value says otherwise.
struct SamplingParams {
  std::optional<double> temperature = {};  // 0: greedy
  std::optional<double> top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {};  // 0: all tokens
  std::optional<uint64_t> seed = {};  // absent: 0
  // If absent and the model has no default: until the context is full.
  std::optional<int64_t> max_tokens = {};
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;  // end-of-sequence tokens do not stop the answer; see chat/sampling.h
  // Applies to tokens in the prompt or the answer; 1: off.
  std::optional<double> repetition_penalty = {};
  // Apply to tokens in the answer; 0: off.
  std::optional<double> frequency_penalty = {}, presence_penalty = {};
  // Tokens and the values added to their logits; each token at most once.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  // Number of most likely tokens returned with each token; absent: neither these tokens nor a rank.
  std::optional<int64_t> logprobs = {};
  // Number of most likely tokens returned with each prompt token from the second on, in addition to that
  // token's logprob; absent: no scores. A prompt with scores does not use the prefix cache, because every
  // token must be computed.
  std::optional<int64_t> prompt_logprobs = {};

  // Whether penalties or biases change the logits. Penalties need all previous tokens on the host.
  bool adjusts() const { return penalises() || !logit_bias.empty(); }
  bool penalises() const {
    return repetition_penalty.value_or(1) != 1 || frequency_penalty.value_or(0) != 0 ||
           presence_penalty.value_or(0) != 0;
  }
};
// Replaces absent values by the model's defaults, and an absent seed by 0. Afterwards only max_tokens,
// logprobs and prompt_logprobs may be absent.
SamplingParams complete(SamplingParams sampling, const GenerationDefaults& defaults);
// The same without a model: replaces absent values by values without effect.
SamplingParams complete(SamplingParams sampling);
// kInvalidArgument names the parameter, the allowed values and the value found.
Status check_sampling(const SamplingParams& sampling, int64_t vocab);
Status check_range(const char* name, double value, double minimum, double maximum);

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  SamplingParams sampling = {};
  std::shared_ptr<TokenFilter> filter = {};  // not shared with other requests; null: all tokens are allowed
};

// A request that ended with an error.
struct FailedRequest {
  int64_t request = 0;  // the number that add() returned
  Status status;
};

enum class FinishReason : uint8_t {
  kNone,    // more tokens follow
  kStop,    // the token is one of stop_token_ids
  kLength,  // max_tokens is reached, or the context is full
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

// The model's logprob of a prompt token.
struct TokenScore {
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  bool operator==(const TokenScore&) const = default;
};

struct GeneratedToken {
  int64_t request = 0;  // the number that add() returned
  int32_t id = 0;
  float logprob = 0;  // natural logarithm, before temperature, penalties, biases and filters
  FinishReason finish = FinishReason::kNone;
  // Set if the request asks for logprobs, from the same distribution as `logprob`: the token's rank, from 1,
  // and the most likely tokens.
  int32_t rank = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache when the request first began to run
  // With a request's first token, if the request asks for prompt_logprobs: scores of the prompt tokens from
  // the second on.
  std::vector<TokenScore> prompt = {};
};

}  // namespace sluice
