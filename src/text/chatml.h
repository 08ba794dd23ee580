// ChatML with reasoning in <think> and calls in Hermes's form: the chat format of Qwen3.
//
//   turn        <|im_start|>ROLE\nCONTENT<|im_end|>\n
//   assistant   [<think>\nREASONING\n</think>\n\n]TEXT, then calls
//   call        <tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>
//   results     a turn of the user: <tool_response>\nRESULT\n</tool_response>, in sequence
//
// Source: the chat templates of Qwen/Qwen3-30B-A3B, -Instruct-2507 and -Thinking-2507.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/chat_format.h"

namespace sluice {

// When models reason. Their templates differ in nothing else.
enum class ChatMlThinking : uint8_t {
  kSwitch,  // reasons unless ChatOptions::thinking is false, which puts an empty <think> block into the prompt
  kAlways,  // always reasons; the prompt ends with <think>
  kNever,
};

// Cheap to copy.
class ChatMl final : public ChatFormat {
 public:
  // The message of kUnsupported names the token that the tokenizer lacks.
  static Result<ChatMl> from(const Tokenizer& tokenizer, ChatMlThinking thinking);

  std::string_view name() const override;
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  ChatAbilities abilities() const override {
    return {.thinking_switch = thinking_ == ChatMlThinking::kSwitch, .many_calls = true};
  }
  Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const override;
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const override;
  Result<std::vector<int32_t>> call_start(const std::string& function,
                                          std::optional<bool> thinking) const override;
  void forget_old_reasoning(std::vector<Message>* messages) const override;
  std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const override;
  Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends, std::optional<bool> thinking) const override;
  bool is_frame(int32_t id) const override;
  std::vector<int32_t> stop_tokens() const override { return {tokens_.end}; }
  std::optional<int32_t> end_token() const override { return tokens_.end; }

  struct Tokens {
    int32_t start = 0, end = 0, think = 0, end_think = 0, call = 0, end_call = 0;
  };
  const Tokens& tokens() const { return tokens_; }
  // Tokenizes text that does not come from users: the text of a special token becomes the token.
  Status encode_frame(std::string_view text, std::vector<int32_t>* ids) const {
    return tokenizer_.encode(text, Specials::kParse, ids);
  }

 private:
  ChatMl(Tokenizer tokenizer, ChatMlThinking thinking)
      : tokenizer_(std::move(tokenizer)), thinking_(thinking) {}
  Tokenizer tokenizer_;
  ChatMlThinking thinking_;
  Tokens tokens_;
};

// The text of a call from <tool_call> (exclusive) up to the arguments.
std::string hermes_call_head(const std::string& function);

}  // namespace sluice
