// What a client of the OpenAI API asks, read from JSON without trust. Nothing here knows a model or a connection.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "chat/sampling.h"
#include "chat/stop_matcher.h"
#include "grammar/grammar.h"
#include "text/chat_message.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

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
  int64_t logprobs_max = 20;
  int64_t scores_max = 1 << 23;  // log probabilities of an answer
};

enum class ApiKind : uint8_t { kChat, kCompletion, kResponse };
using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text or tokens

// What the model may call.
struct ApiTools {
  std::vector<FunctionTool> functions = {};
  std::vector<std::string> left_out = {};  // kinds of tools that a server would have to run by itself
  enum class Choice : uint8_t { kAuto, kNone, kRequired, kNamed };
  Choice choice = Choice::kAuto;
  std::string named = {};  // one of the functions
  bool parallel = true;    // calls may follow each other
  bool offered() const { return choice != Choice::kNone && !functions.empty(); }
};

struct ApiConversation {
  std::string instructions = {};  // of the system or developer messages before all others
  bool has_instructions = false;  // even if they are empty
  std::vector<Message> messages = {};
  std::map<std::string, std::string> function_of = {};  // by the id of its call
};

// An answer of /v1/responses, and the conversation up to and with it.
struct StoredResponse {
  ApiConversation conversation;
  std::string json;
};

// What /v1/responses alone asks.
struct ApiResponseFields {
  bool store = true;
  std::string instructions = {};  // of this answer alone
  std::string given_back =
      {};  // members of a JSON object, without its braces: what the answer repeats of the request
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model = {};  // empty: the one that is served
  // Of a chat or a response.
  ApiConversation conversation = {};
  std::optional<ReasoningEffort> effort = {};
  std::optional<bool> thinking = {};
  bool include_reasoning = true;
  ApiTools tools = {};
  ApiResponseFields response = {};
  // Of a completion.
  std::vector<Prompt> prompts = {};  // at least one
  bool echo = false;
  Specials specials = Specials::kAsText;  // in its texts

  RequestSampling sampling = {};                       // max_tokens 0: the answer is the echo alone
  std::optional<GrammarSource> structure = {};         // what the answer matches; of a chat its final message
  std::string structure_field = {};                    // that says it
  std::optional<ResponseFormat> response_format = {};  // what a chat tells the model of it
  int64_t choices = 1;                                 // for each prompt
  StopStrings stop = {};
  bool stream = false, include_usage = false;
  bool usage_in_each_event = false;       // beside include_usage
  std::vector<std::string> ignored = {};  // fields that mean nothing here
  std::vector<std::string> unmet = {};    // what is asked for, of which there is none here
};

// Ignored by formats that do not take it.
constexpr const char* kThinkingField = "chat_template_kwargs.enable_thinking";

struct TokenizeRequest {
  std::optional<std::string> text;  // none: the chat
  Specials specials = Specials::kAsText;
  ApiRequest chat;
  PromptEnd end = PromptEnd::kNextMessage;  // of the chat
};

// A field that Sluice cannot honour is an error that names it, unless it has the value that asks for nothing.
Result<ApiRequest, ApiError> read_chat(std::string_view body, const ApiLimits& limits);
// `stored` finds what `previous_response_id` names; null: there is none.
using FindResponse = std::function<std::shared_ptr<const StoredResponse>(const std::string& id)>;
Result<ApiRequest, ApiError> read_response(std::string_view body, const ApiLimits& limits,
                                           const FindResponse& stored);
Result<ApiRequest, ApiError> read_completion(std::string_view body, const ApiLimits& limits);
Result<TokenizeRequest, ApiError> read_tokenize(std::string_view body, const ApiLimits& limits);
Result<std::vector<int32_t>, ApiError> read_detokenize(std::string_view body, const ApiLimits& limits);

}  // namespace sluice
