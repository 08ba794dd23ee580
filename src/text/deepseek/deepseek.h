// The chat formats of DeepSeek V3, R1 and V3.1.
//
//   prompt      <｜begin▁of▁sentence｜>SYSTEM, then turns; all system messages are at the front
//   user        <｜User｜>TEXT
//   assistant   <｜Assistant｜>TEXT, then calls, <｜end▁of▁sentence｜>
//   calls       <｜tool▁calls▁begin｜>CALL...<｜tool▁calls▁end｜>; V3 and R1 separate calls by a line break
//   call        V3, R1  <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>
//               V3.1    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>
//   results     V3, R1  <｜tool▁outputs▁begin｜>RESULT...<｜tool▁outputs▁end｜>, separated by line breaks
//               V3.1    RESULT...
//   result      <｜tool▁output▁begin｜>TEXT<｜tool▁output▁end｜>
//   reasoning   R1      <think>\nREASONING\n</think>\n\nTEXT
//               V3.1    <think>REASONING</think>TEXT, or </think>TEXT
//
// The answer to results of tools follows the results directly, without <｜Assistant｜>. Prompts never show the reasoning
// of earlier answers.
//
// Source: the chat templates of deepseek-ai/DeepSeek-V3-0324, -R1, -R1-0528 and -V3.1. These templates do not describe tools to the model. The
// description follows vLLM's examples/tool_chat_template_deepseekv3.jinja, ..._deepseekr1.jinja and ..._deepseekv31.jinja.
#pragma once
#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace sluice {

enum class DeepSeekModel : uint8_t {
  kV3,        // V3, V3-0324: never reasons
  kR1,        // R1-0528: the model writes <think> itself
  kR1Opened,  // R1 of January 2025: the prompt ends with <think>, except after results of tools
  kV31,       // reasons if ChatOptions::thinking is true, except after results of tools
};

// Cheap to copy.
class DeepSeek final : public ChatFormat {
 public:
  // The message of kUnsupported names the token that the tokenizer lacks. The tokenizers of distilled R1 models have no tokens for calls, so
  // that functions_text() and call_start() return kUnsupported.
  static Result<DeepSeek> from(const Tokenizer& tokenizer, DeepSeekModel model);

  std::string_view name() const override;
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  ChatAbilities abilities() const override {
    return {.thinking_switch = model_ == DeepSeekModel::kV31, .many_calls = true};
  }
  Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const override;
  // A system message cannot be continued, because all system messages are written at the front.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const override;
  std::optional<bool> thinking_after(const std::vector<Message>& messages,
                                     std::optional<bool> thinking) const override;
  Result<std::vector<int32_t>> call_start(const std::string& function,
                                          std::optional<bool> thinking) const override;
  void forget_old_reasoning(std::vector<Message>* messages) const override;
  std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const override;
  Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends, std::optional<bool> thinking) const override;
  bool is_frame(int32_t id) const override;
  std::vector<int32_t> stop_tokens() const override { return {tokens_.end}; }
  std::optional<int32_t> end_token() const override { return tokens_.end; }

  static constexpr int32_t kNoToken = INT32_MIN;  // never an id
  struct Tokens {
    int32_t begin = kNoToken, end = kNoToken, user = kNoToken, assistant = kNoToken;
    int32_t think = kNoToken, end_think = kNoToken;  // unused with kV3
    int32_t calls = kNoToken, call = kNoToken, sep = kNoToken, end_call = kNoToken, end_calls = kNoToken;
    int32_t outputs = kNoToken, output = kNoToken, end_output = kNoToken, end_outputs = kNoToken;
  };
  struct NamedToken {
    std::string_view text;
    int32_t Tokens::*id;
  };
  static const std::vector<NamedToken>& named_tokens();

  DeepSeekModel model() const { return model_; }
  const Tokens& tokens() const { return tokens_; }
  bool has_calls() const { return tokens_.calls != kNoToken; }
  // Whether calls begin with their type and have their arguments in a ```json fence.
  bool has_fences() const { return model_ != DeepSeekModel::kV31; }
  // Tokenizes text that does not come from users: the text of an added token becomes the token.
  Status encode_frame(std::string_view text, std::vector<int32_t>* ids) const {
    return tokenizer_.encode(text, Specials::kParse, ids);
  }

 private:
  DeepSeek(Tokenizer tokenizer, DeepSeekModel model) : tokenizer_(std::move(tokenizer)), model_(model) {}
  bool is_r1() const { return model_ == DeepSeekModel::kR1 || model_ == DeepSeekModel::kR1Opened; }
  Status need_calls() const;
  Tokenizer tokenizer_;
  DeepSeekModel model_;
  Tokens tokens_;
};

// A system prompt describes functions by `head`, then the functions' descriptions, then `tail`. Only head and tail may contain control
// tokens.
struct DeepSeekToolText {
  std::string_view head, tail;
};
DeepSeekToolText deepseek_tool_text(DeepSeekModel model);

}  // namespace sluice
