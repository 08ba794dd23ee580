// Reads untrusted JSON requests of the OpenAI API. Independent of models and of connections.
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

#include "chat/stop_matcher.h"
#include "engine/request.h"
#include "grammar/grammar.h"
#include "text/chat_message.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

// The error object of the OpenAI API. Empty `param` and `code` become null.
struct ApiError {
  int status = 400;  // HTTP status
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {}, code = {};
};

struct ApiLimits {
  int64_t vocab = 0;          // token ids must be less than this
  int64_t max_choices = 128;  // choices of one request
  double temperature_max = 2;
  double penalty_max = 2;  // limit of the absolute value of frequency and presence penalties
  double repetition_min = 0.01, repetition_max = 100;
  double bias_max = 100;  // limit of the absolute value of a bias
  int64_t logprobs_max = 20;
  int64_t scores_max = 1 << 23;  // log probabilities of one answer
};

enum class ApiKind : uint8_t { kChat, kCompletion, kResponse };
using Prompt = std::variant<std::string, std::vector<int32_t>>;  // text or tokens

// The tools that the model may call.
struct ApiTools {
  std::vector<FunctionTool> functions = {};
  std::vector<std::string> left_out = {};  // types of tools that the server would have to run
  enum class Choice : uint8_t { kAuto, kNone, kRequired, kNamed };
  Choice choice = Choice::kAuto;
  std::string named = {};  // the name of one of the functions
  bool parallel = true;    // several calls are allowed
  bool offered() const { return choice != Choice::kNone && !functions.empty(); }
};

struct ApiConversation {
  std::string instructions = {};  // from the system or developer messages that precede all other messages
  bool has_instructions = false;  // true even if they are empty
  std::vector<Message> messages = {};
  std::map<std::string, std::string> function_of = {};  // by call id
};

// An answer of /v1/responses, and the conversation including that answer.
struct StoredResponse {
  ApiConversation conversation;
  std::string json;
};

// Fields of /v1/responses only.
struct ApiResponseFields {
  bool store = true;
  std::string instructions = {};  // apply to this answer, and are not stored with the conversation
  // The members that the answer repeats from the request, as JSON text without the braces around them.
  std::string given_back = {};
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model = {};  // empty: the served model
  // Chats and responses only.
  ApiConversation conversation = {};
  std::optional<ReasoningEffort> effort = {};
  std::string effort_field = {};  // the field that set `effort`
  std::optional<bool> thinking = {};
  bool needs_thinking_switch =
      false;                      // a format without ChatAbilities::thinking_switch rejects enable_thinking
  std::string prefix_field = {};  // the path of the last message's `prefix`, if that field is true
  PromptEnd end = PromptEnd::kNextMessage;  // with kOpenMessage, the answer continues the last message
  bool include_reasoning = true;
  ApiTools tools = {};
  ApiResponseFields response = {};
  // Completions only.
  std::vector<Prompt> prompts = {};  // at least one
  bool echo = false;
  Specials specials =
      Specials::kAsText;  // whether the text of a special token in a prompt becomes that token

  bool add_special_tokens = false;  // puts special_ends() around the prompt, unless it is given as token ids
  SamplingParams sampling = {};     // if max_tokens is 0, the answer is only the echoed prompt
  std::optional<GrammarSource> structure = {};  // what the answer must match; in a chat, its final message
  std::string structure_field = {};             // the field that set `structure`
  std::optional<ResponseFormat> response_format = {};  // shown to the model in a chat's prompt
  int64_t choices = 1;                                 // per prompt
  StopStrings stop = {};
  bool stream = false, include_usage = false;
  bool usage_in_each_event = false;       // only with include_usage
  std::vector<std::string> ignored = {};  // unknown fields
  std::vector<std::string> unmet = {};    // requested features that Sluice does not have
};

// Whether `field` switches reasoning on or off; templates use two names for this. Chat formats without the option ignore the
// field.
bool is_thinking_field(std::string_view field);

struct TokenizeRequest {
  std::optional<std::string> text;  // nullopt: tokenize `chat`
  Specials specials = Specials::kAsText;
  bool add_special_tokens = true;  // for `text`; ApiRequest has the field for `chat`
  ApiRequest chat;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// An unsupported field is an error, which names the field, unless the field's value means "off".
Result<ApiRequest, ApiError> read_chat(std::string_view body, const ApiLimits& limits);
// Finds the response named by `previous_response_id`; null: not stored.
using FindResponse = std::function<std::shared_ptr<const StoredResponse>(const std::string& id)>;
Result<ApiRequest, ApiError> read_response(std::string_view body, const ApiLimits& limits,
                                           const FindResponse& stored);
Result<ApiRequest, ApiError> read_completion(std::string_view body, const ApiLimits& limits);
Result<TokenizeRequest, ApiError> read_tokenize(std::string_view body, const ApiLimits& limits);
Result<DetokenizeRequest, ApiError> read_detokenize(std::string_view body, const ApiLimits& limits);

}  // namespace sluice
