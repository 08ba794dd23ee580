// Sampling settings of an answer, as a request or a command line gives them.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sluice {

class ChatFormat;
struct ModelConfig;
struct SamplingParams;

// Empty members take the model's defaults (generation_config.json) unless their comment names another default.
struct RequestSampling {
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {};
  std::optional<int64_t> max_tokens = {};
  std::optional<uint64_t> seed = {};  // none: 0
  std::optional<double> repetition_penalty = {}, frequency_penalty = {}, presence_penalty = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // each token at most once
  std::vector<int32_t> stop_token_ids = {};                // in addition to the model's
  bool ignore_eos = false;  // the model's end-of-sequence tokens do not end the answer
  // Log probabilities of each token and of this many top tokens; none: not requested.
  std::optional<int64_t> logprobs = {};
};

SamplingParams sampling_params(const RequestSampling& request, const ModelConfig& model,
                               const ChatFormat& format);

}  // namespace sluice
