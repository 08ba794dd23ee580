// A conversation, independent of a model's chat format (text/chat_format.h).
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

// Each part of a turn is a message of its own: the assistant's reasoning, text and calls, and the results of tools. The fields are the fields of
// harmony's messages; other formats write the fields that they support.
struct Message {
  ChatRole role = ChatRole::kUser;
  std::string name = {};     // for kTool: the name of the tool ("functions.weather")
  std::string channel = {};  // channel of the assistant's message: "analysis", "commentary" or "final"
  // Of a call: the called tool ("functions.weather"). Of a tool's result: "assistant".
  std::string recipient = {};
  std::string content_type = {};  // type of the content, for example "json"
  std::string content = {};
  bool operator==(const Message&) const = default;
};

// A JSON schema for the final message, which harmony shows to the model in the developer message.
struct ResponseFormat {
  std::string name = {}, description = {}, schema = {};
};

// The content that precedes the conversation in a prompt. Harmony writes it as a system message and a developer message, without the lines
// and sections that would be empty.
struct ChatOptions {
  ReasoningEffort effort = ReasoningEffort::kMedium;
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string current_date;            // "2025-06-28"
  std::string developer_instructions;  // in formats other than harmony: the system prompt
  bool has_instructions = false;       // true even if they are empty
  std::string functions;               // from ChatFormat::functions_text()
  std::optional<ResponseFormat> response_format = {};
  // Whether the model reasons before it answers; nullopt: the format's default.
  std::optional<bool> thinking = {};
};

// How a prompt ends.
enum class PromptEnd : uint8_t {
  kNextMessage,  // with the header of the assistant's next message
  kLastMessage,  // with the end of the last message
  kOpenMessage,  // inside the last message, so that the answer continues it
};

struct Conversation {
  ChatOptions options;
  std::vector<Message> messages;
  PromptEnd end = PromptEnd::kNextMessage;
};

// Functions that make the parts of a conversation.
Message user_message(std::string content);
Message instruction_message(
    std::string content);  // of the system or a developer, in the middle of a conversation
Message reasoning_message(std::string content);
enum class Said : uint8_t { kFinal, kBeforeCall };
Message text_message(std::string content, Said said);
Message call_message(const std::string& function, std::string arguments);
Message result_message(const std::string& function, std::string content);

bool is_reasoning(const Message& message);
bool is_final_text(const Message& message);

// Returns "functions.NAME", which is the recipient of a call and the `name` of a result.
std::string function_recipient(const std::string& name);
// The function that a recipient names; empty if it names none.
std::string called_function(const std::string& recipient);

constexpr size_t kFunctionNameMax = 64;
bool is_function_name(const std::string& name);  // 1 to kFunctionNameMax letters, digits, "_" and "-"

// A function that the model may call.
struct FunctionTool {
  std::string name;  // is_function_name(name) must hold
  std::string description = {};
  // A JSON schema whose members keep their order. Empty: no parameters.
  std::string parameters = {};
  // The schema of the arguments that the model generates: `parameters`, restricted to objects. Empty: any object.
  std::string arguments = {};
  bool strict = false;  // whether arguments must match the schema
};

}  // namespace sluice
