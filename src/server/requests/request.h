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
  int64_t vocab = 0;          // token ids must be less
  int64_t max_choices = 128;  // choices of one request
  double temperature_max = 2;
  double penalty_max = 2;  // limit of the absolute frequency and presence penalties
  double repetition_min = 0.01, repetition_max = 100;
  double bias_max = 100;  // limit of the absolute bias
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

// The fields that only /v1/responses has.
struct ApiResponseFields {
  bool store = true;
  std::string instructions = {};  // for this answer only
  // JSON members, without braces, that the answer copies from the request.
  std::string given_back = {};
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model = {};  // empty: the served model
  // Chats and responses only.
  ApiConversation conversation = {};
  std::optional<ReasoningEffort> effort = {};
  std::string effort_field = {};  // the field that requests it
  std::optional<bool> thinking = {};
  bool needs_thinking_switch =
      false;                      // a format without ChatAbilities::thinking_switch rejects enable_thinking
  std::string prefix_field = {};  // the last message's `prefix`, if the answer shall continue it
  PromptEnd end = PromptEnd::kNextMessage;  // kOpenMessage: the answer continues the last message
  bool include_reasoning = true;
  ApiTools tools = {};
  ApiResponseFields response = {};
  // Completions only.
  std::vector<Prompt> prompts = {};  // at least one
  bool echo = false;
  Specials specials = Specials::kAsText;  // how prompts treat the text of special tokens

  bool add_special_tokens = false;  // puts special_ends() around a chat's prompt or prompts of text
  SamplingParams sampling = {};     // max_tokens 0: the answer is only the echoed prompt
  std::optional<GrammarSource> structure = {};  // what the answer must match; in a chat, its final message
  std::string structure_field = {};             // the field that requests it
  std::optional<ResponseFormat> response_format = {};  // shown to the model in a chat's prompt
  int64_t choices = 1;                                 // per prompt
  StopStrings stop = {};
  bool stream = false, include_usage = false;
  bool usage_in_each_event = false;       // only with include_usage
  std::vector<std::string> ignored = {};  // unknown fields
  std::vector<std::string> unmet = {};    // features that are requested and not available
};

// Whether the field switches reasoning on or off. Templates use two names for this field. Chat formats without the option ignore
// it.
bool is_thinking_field(std::string_view field);

struct TokenizeRequest {
  std::optional<std::string> text;  // none: tokenize the chat
  Specials specials = Specials::kAsText;
  bool add_special_tokens = true;  // for text only; a chat has its own field
  ApiRequest chat;
};

// A field that Sluice does not support is an error that names the field, unless its value means "off".
Result<ApiRequest, ApiError> read_chat(std::string_view body, const ApiLimits& limits);
// Finds the response named by `previous_response_id`; null: not stored.
using FindResponse = std::function<std::shared_ptr<const StoredResponse>(const std::string& id)>;
Result<ApiRequest, ApiError> read_response(std::string_view body, const ApiLimits& limits,
                                           const FindResponse& stored);
Result<ApiRequest, ApiError> read_completion(std::string_view body, const ApiLimits& limits);
Result<TokenizeRequest, ApiError> read_tokenize(std::string_view body, const ApiLimits& limits);
Result<std::vector<int32_t>, ApiError> read_detokenize(std::string_view body, const ApiLimits& limits);

}  // namespace sluice
