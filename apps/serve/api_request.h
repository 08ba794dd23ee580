// What a client of the OpenAI API asks, read from JSON without trust. Nothing here knows a model or a connection.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/harmony.h"

namespace sluice::apps {

// As the error object of the OpenAI API has it. Empty `param` and `code` are null there.
struct ApiError {
  int status = 400;  // of HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {}, code = {};
};

struct ApiLimits {
  int64_t vocab = 0;          // token ids are below
  int64_t max_choices = 128;  // answers to one request
  double temperature_max = 2;
  double penalty_max = 2;  // of frequency and presence, either sign
  double repetition_min = 0.01, repetition_max = 100;
  double bias_max = 100;  // either sign
};

enum class ApiKind : uint8_t { kChat, kCompletion };
using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text or tokens

// What is not said is the model's or the server's to say.
struct ApiSampling {
  std::optional<double> temperature = {}, top_p = {}, min_p = {};
  std::optional<int64_t> top_k = {}, max_tokens = {};
  std::optional<uint64_t> seed = {};
  std::optional<double> repetition_penalty = {}, frequency_penalty = {}, presence_penalty = {};
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // each token once
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model = {};  // empty: the one that is served
  // Of a chat.
  std::string instructions = {};  // of the system or developer messages before all others
  std::vector<Message> messages = {};
  std::optional<ReasoningEffort> effort = {};
  bool include_reasoning = true;
  // Of a completion.
  std::vector<Prompt> prompts = {};  // at least one
  bool echo = false;
  Specials specials = Specials::kAsText;  // in its texts

  ApiSampling sampling = {};
  int64_t choices = 1;                 // for each prompt
  std::vector<std::string> stop = {};  // none is empty
  bool stream = false, include_usage = false;
  std::vector<std::string> ignored = {};  // fields that mean nothing here
};

struct TokenizeRequest {
  std::optional<std::string> text;  // none: the chat
  Specials specials = Specials::kAsText;
  ApiRequest chat;
};

template <class T>
using ApiResult = std::variant<T, ApiError>;

// A field that Sluice cannot honour is an error that names it, unless it has the value that asks for nothing.
ApiResult<ApiRequest> read_chat(std::string_view body, const ApiLimits& limits);
ApiResult<ApiRequest> read_completion(std::string_view body, const ApiLimits& limits);
ApiResult<TokenizeRequest> read_tokenize(std::string_view body, const ApiLimits& limits);
ApiResult<std::vector<int32_t>> read_detokenize(std::string_view body, const ApiLimits& limits);

}  // namespace sluice::apps
