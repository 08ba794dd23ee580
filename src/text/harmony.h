// Harmony, the chat format of gpt-oss: messages to tokens and back.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sluice {

enum class ChatRole : uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };
std::string_view text(ChatRole role);  // "system", ...
std::optional<ChatRole> parse_role(std::string_view word);
enum class ReasoningEffort : uint8_t { kLow, kMedium, kHigh };
std::string_view text(ReasoningEffort effort);  // "low", ...

// Header fields hold no white space and no control characters, and do not begin with "to="; an empty one is left out.
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

// The system message, and the developer message before the conversation. Empty lines and sections are left out.
struct ChatOptions {
  ReasoningEffort effort = ReasoningEffort::kMedium;
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string current_date;            // "2025-06-28"
  std::string developer_instructions;  // what other formats call the system prompt
  std::string functions;               // of functions_section(): what the model may call
  std::optional<ResponseFormat> response_format = {};
};

// How the prompt of a conversation ends.
enum class PromptEnd : uint8_t {
  kNextMessage,  // "<|start|>assistant": the assistant is asked for the next message
  kLastMessage,  // with the last message
  kOpenMessage,  // within the last message: its end is left out
};

struct Conversation {
  ChatOptions options;
  std::vector<Message> messages;
  PromptEnd end = PromptEnd::kNextMessage;
};

// The text of the system message, without its frame.
std::string system_text(const ChatOptions& options);

// A tokenizer that has harmony's special tokens. Cheap to copy.
//
//   message     <|start|>HEADER<|message|>CONTENT then <|end|>, <|call|> (assistant to a tool) or <|return|> (the model is done)
//   HEADER      ROLE or the name of a tool, [ to=RECIPIENT][<|channel|>CHANNEL][ <|constrain|>CONTENT_TYPE]
//
// Source: openai/harmony, docs/format.md and src/encoding.rs.
class Harmony {
 public:
  // kUnsupported names the special token that the tokenizer lacks. A token of that text which is not special does not
  // count: text from a user would become it.
  static Result<Harmony> from(const Tokenizer& tokenizer);

  // The prompt for the next message of the assistant: the system message, the developer message if there are instructions,
  // the messages, and the end that the conversation asks for. All content is plain text: no content makes a special token. Analysis before the
  // last final message of the assistant is left out, because the model was trained not to see it again.
  // kInvalidArgument names the message and the field: a header that could not be read back, a tool without a
  // name; kOpenMessage without a message; and what Tokenizer::encode() says.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const;
  // Appends one message with its frame.
  Status append(const Message& message, std::vector<int32_t>* ids) const;

  // What ends the sampling of one message: <|return|> and <|call|>; <|end|> only ends a message.
  bool ends_turn(int32_t id) const { return id == return_ || id == call_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  friend class HarmonyParser;
  explicit Harmony(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  Tokenizer tokenizer_;
  int32_t start_ = 0, end_ = 0, message_ = 0, channel_ = 0, constrain_ = 0, return_ = 0, call_ = 0;
};

}  // namespace sluice
