// A conversation, whatever format a model reads it in (text/chat_format.h).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

enum class ChatRole : uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };
std::string_view text(ChatRole role);  // "system", ...
std::optional<ChatRole> parse_role(std::string_view word);
enum class ReasoningEffort : uint8_t { kLow, kMedium, kHigh };
std::string_view text(ReasoningEffort effort);  // "low", ...

// The parts of a turn, each a message of its own: reasoning, text and calls of the assistant, results of tools. The fields are those
// of the richest format, harmony; each format writes those that it has a place for.
struct Message {
  ChatRole role = ChatRole::kUser;
  std::string name = {};  // of a tool ("functions.weather"), which stands in the header in place of its role
  std::string channel = {};  // "analysis", "commentary" or "final" from the assistant
  std::string recipient =
      {};  // whom a call is for ("functions.weather"), or whom a tool answers ("assistant")
  std::string content_type = {};  // what the content is constrained to, for example "json"
  std::string content = {};
  bool operator==(const Message&) const = default;
};

// A JSON schema for the final message, of which the developer message tells the model.
struct ResponseFormat {
  std::string name = {}, description = {}, schema = {};
};

// What a format makes of what stands before the conversation. Harmony: the system message and the developer message, without empty lines
// and sections.
struct ChatOptions {
  ReasoningEffort effort = ReasoningEffort::kMedium;
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string current_date;            // "2025-06-28"
  std::string developer_instructions;  // what other formats call the system prompt
  bool has_instructions = false;       // even if they are empty
  std::string functions;               // of ChatFormat::functions_text(): what the model may call
  std::optional<ResponseFormat> response_format = {};
  std::optional<bool> thinking =
      {};  // whether the model reasons before it answers; none: as its format does by itself
};

// How the prompt of a conversation ends.
enum class PromptEnd : uint8_t {
  kNextMessage,  // with the beginning of the next message of the assistant, for which it asks
  kLastMessage,  // with the last message
  kOpenMessage,  // within the last message: its end is left out
};

struct Conversation {
  ChatOptions options;
  std::vector<Message> messages;
  PromptEnd end = PromptEnd::kNextMessage;
};

// The parts of a conversation.
Message user_message(std::string content);
Message instruction_message(std::string content);  // of the system or a developer, amid a conversation
Message reasoning_message(std::string content);
enum class Said : uint8_t { kFinal, kBeforeCall };
Message text_message(std::string content, Said said);
Message call_message(const std::string& function, std::string arguments);
Message result_message(const std::string& function, std::string content);

bool is_reasoning(const Message& message);
bool is_final_text(const Message& message);

// Whom a call of a function is for, and whose result a message is: "functions.NAME".
std::string function_recipient(const std::string& name);
// The function that a recipient names; empty: none.
std::string called_function(const std::string& recipient);

constexpr size_t kFunctionNameMax = 64;
bool is_function_name(const std::string& name);  // 1 to so many letters, digits, "_" and "-"

// A function that a model may call.
struct FunctionTool {
  std::string name;  // is_function_name()
  std::string description = {};
  // A JSON schema, its members in the order in which they are to be shown. Empty: no parameters.
  std::string parameters = {};
  // The schema that arguments are held to: the parameters, and an object. Empty: any object.
  std::string arguments = {};
  bool strict = false;  // arguments must match the schema
};

}  // namespace sluice
