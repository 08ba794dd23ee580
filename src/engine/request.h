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

constexpr int64_t kTopLogprobsMax = 20;  // the limit of OpenAI's API

// How an answer is sampled: as a request or a command line says it, and as the engine computes it. Names match vLLM;
// ops/adjust_logits.h and ops/sample.h define the effects. Absent values take a model's defaults (complete()) unless their
// comment says otherwise.
struct SamplingParams {
  std::optional<double> temperature = {};  // 0: greedy
  std::optional<double> top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {};  // 0: all tokens
  std::optional<uint64_t> seed = {};  // absent: 0
  // Absent, and without a model's default: until the context is full.
  std::optional<int64_t> max_tokens = {};
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;  // for sampling_params(): the model's end-of-sequence tokens are no stop tokens
  // Applies to tokens in the prompt or the answer; 1: off.
  std::optional<double> repetition_penalty = {};
  // Apply to tokens in the answer; 0: off.
  std::optional<double> frequency_penalty = {}, presence_penalty = {};
  // Tokens and the values added to their logits; each token once.
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  // Number of likeliest tokens returned with each token; absent: none, and no rank.
  std::optional<int64_t> logprobs = {};
  // Number of likeliest tokens returned with each prompt token from the second on, besides the token's own
  // logprob; absent: neither. Every token of such a prompt is computed; the prefix cache is not used.
  std::optional<int64_t> prompt_logprobs = {};

  // Whether sampling needs all previous tokens on the host, or changes logits.
  bool adjusts() const { return penalises() || !logit_bias.empty(); }
  bool penalises() const {
    return repetition_penalty.value_or(1) != 1 || frequency_penalty.value_or(0) != 0 ||
           presence_penalty.value_or(0) != 0;
  }
};
// Replaces absent values by the model's defaults, and an absent seed by 0. Then only max_tokens, logprobs and prompt_logprobs
// may be absent.
SamplingParams complete(SamplingParams sampling, const GenerationDefaults& defaults);
// The same without a model: by values that change nothing.
SamplingParams complete(SamplingParams sampling);
// kInvalidArgument names the parameter, the values allowed and the value found.
Status check_sampling(const SamplingParams& sampling, int64_t vocab);
Status check_range(const char* name, double value, double least, double most);

struct Request {
  std::vector<int32_t> prompt = {};  // at least one token
  SamplingParams sampling = {};
  std::shared_ptr<TokenFilter> filter = {};  // belongs to this request alone; null: every token is allowed
};

// A request that ended with an error instead of a last token.
struct FailedRequest {
  int64_t request = 0;  // the number that add() returned
  Status status;
};

enum class FinishReason : uint8_t {
  kNone,    // more tokens follow
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

// The model's probability of a token that was given, not sampled.
struct TokenScore {
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  bool operator==(const TokenScore&) const = default;
};

struct GeneratedToken {
  int64_t request = 0;  // the number that add() returned
  int32_t id = 0;
  float logprob =
      0;  // natural log in the model's own distribution: before temperature, penalties, biases, filters
  FinishReason finish = FinishReason::kNone;
  // If the request asks for logprobs, in the same distribution: the token's rank by likelihood, from 1, and the likeliest tokens.
  int32_t rank = 0;
  std::vector<TokenLogprob> top_logprobs = {};
  int64_t cached_tokens = 0;  // tokens of the prompt found in the prefix cache when the request began
  // With a request's first token, if it asks for prompt_logprobs: scores of the prompt's tokens from the second on.
  std::vector<TokenScore> prompt = {};
};

}  // namespace sluice
