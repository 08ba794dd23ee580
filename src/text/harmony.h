// Harmony, the chat format of gpt-oss: messages to tokens and back.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

// The text of the system message, without its frame.
std::string system_text(const ChatOptions& options);

// A tokenizer that has harmony's special tokens. Cheap to copy.
//
//   message     <|start|>HEADER<|message|>CONTENT then <|end|>, <|call|> (assistant to a tool) or <|return|> (the model is done)
//   HEADER      ROLE or the name of a tool, [ to=RECIPIENT][<|channel|>CHANNEL][ <|constrain|>CONTENT_TYPE]
//
// Source: openai/harmony, docs/format.md and src/encoding.rs.
class Harmony final : public ChatFormat {
 public:
  // kUnsupported names the special token that the tokenizer lacks. A token of that text which is not special does not
  // count: text from a user would become it.
  static Result<Harmony> from(const Tokenizer& tokenizer);

  // The prompt for the next message of the assistant: the system message, the developer message if there are instructions,
  // the messages, and the end that the conversation asks for. All content is plain text: no content makes a special token. Analysis before the
  // last final message of the assistant is left out, because the model was trained not to see it again.
  // Header fields hold no white space and no control characters, and do not begin with "to="; an empty one is left out.
  // kInvalidArgument names the message and the field: a header that could not be read back, a tool without a
  // name; kOpenMessage without a message; and what Tokenizer::encode() says.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const override;
  // Appends one message with its frame.
  Status append(const Message& message, std::vector<int32_t>* ids) const;

  // What ends the sampling of one message: <|return|> and <|call|>; <|end|> only ends a message.
  bool ends_turn(int32_t id) const { return id == return_ || id == call_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }

  // ChatFormat's (harmony_format.cc).
  std::string_view name() const override { return "harmony"; }
  ChatAbilities abilities() const override { return {.efforts = true, .system_message = true}; }
  Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const override;
  Result<std::vector<int32_t>> call_start(const std::string& function,
                                          std::optional<bool> thinking) const override;
  void forget_old_reasoning(std::vector<Message>* messages) const override;
  std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const override;
  Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends, std::optional<bool> thinking) const override;
  std::vector<int32_t> stop_tokens() const override { return {return_, call_}; }
  int32_t end_token() const override { return return_; }

 private:
  friend class HarmonyParser;
  friend class HarmonyGate;
  explicit Harmony(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  Tokenizer tokenizer_;
  int32_t start_ = 0, end_ = 0, message_ = 0, channel_ = 0, constrain_ = 0, return_ = 0, call_ = 0;
};

}  // namespace sluice
