// Harmony, the chat format of gpt-oss: turns conversations into tokens, and tokens into messages.
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

// The text of the system message, without the control tokens around it.
std::string system_text(const ChatOptions& options);

// Needs a tokenizer with harmony's special tokens. Cheap to copy.
//
//   message     <|start|>HEADER<|message|>CONTENT then <|end|>, <|call|> (assistant to a tool) or <|return|> (the model is done)
//   HEADER      ROLE or the name of a tool, [ to=RECIPIENT][<|channel|>CHANNEL][ <|constrain|>CONTENT_TYPE]
//
// Source: openai/harmony, docs/format.md and src/encoding.rs.
class Harmony final : public ChatFormat {
 public:
  // The message of kUnsupported names the missing special token. An added token with the same text counts only if it is special, because a
  // user's text can produce added tokens that are not special.
  static Result<Harmony> from(const Tokenizer& tokenizer);

  // The prompt: the system message, the developer message if it has content, the messages, and the requested end. Content never becomes a
  // special token. Analysis before the assistant's last final message is omitted, because the model was trained without it. (A final message
  // that the answer continues does not count as the last one.)
  // Header fields must contain neither white space nor control characters and must not begin with "to="; empty fields are omitted.
  // kInvalidArgument: a header field breaks this rule, a tool has no name, there is no message for kOpenMessage, or Tokenizer::encode()
  // failed. The error's text names the message and the field.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const override;
  // Appends one message with the control tokens around it.
  Status append(const Message& message, std::vector<int32_t>* ids) const;

  // Whether the token ends the answer. <|return|> and <|call|> do; <|end|> ends only a message.
  bool ends_turn(int32_t id) const { return id == return_ || id == call_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }

  // Overrides of ChatFormat (harmony_format.cc).
  std::string_view name() const override { return "harmony"; }
  ChatAbilities abilities() const override { return {.efforts = true, .system_message = true}; }
  Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const override;
  Result<std::vector<int32_t>> call_start(const std::string& function,
                                          std::optional<bool> thinking) const override;
  void forget_old_reasoning(std::vector<Message>* messages) const override;
  std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const override;
  Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends, std::optional<bool> thinking) const override;
  std::vector<int32_t> stop_tokens() const override { return {return_, call_}; }
  std::optional<int32_t> end_token() const override { return return_; }

 private:
  friend class HarmonyParser;
  friend class HarmonyGate;
  explicit Harmony(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  Tokenizer tokenizer_;
  int32_t start_ = 0, end_ = 0, message_ = 0, channel_ = 0, constrain_ = 0, return_ = 0, call_ = 0;
};

}  // namespace sluice
