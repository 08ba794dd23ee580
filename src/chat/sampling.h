// How an answer is drawn, as a request or a command line says it.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

class ChatFormat;
struct ModelConfig;
struct SamplingParams;

// What is not said is the model's (generation_config.json), unless a member says otherwise.
struct RequestSampling {
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {};
  std::optional<int64_t> max_tokens = {};
  std::optional<uint64_t> seed = {};  // none: 0
  std::optional<double> repetition_penalty = {}, frequency_penalty = {}, presence_penalty = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // each token once
  std::vector<int32_t> stop_token_ids = {};                // beside the model's
  bool ignore_eos = false;                                 // the model's end no answer
  std::optional<int64_t> logprobs = {};  // of each token, and of so many likeliest ones; none: not wanted
};

SamplingParams sampling_params(const RequestSampling& request, const ModelConfig& model,
                               const ChatFormat& format);

}  // namespace sluice
