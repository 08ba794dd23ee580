// How a model reads a conversation and writes its answer. All that a program knows of a model's chats is behind this: a format is one
// file with an entry, and one line in chat_formats.cc.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/answer_parser.h"
#include "text/chat_gate.h"
#include "text/chat_message.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

// What a format has a place for.
struct ChatAbilities {
  bool efforts = false;          // ChatOptions::effort
  bool thinking_switch = false;  // ChatOptions::thinking
  bool many_calls = false;       // in one answer
  bool system_message = false;   // identity, dates: ChatOptions beside the instructions
};

// What the parser of an answer is told of its prompt.
struct AnswerContext {
  std::optional<bool> thinking = {};
  bool calls = false;  // functions are offered: what looks like a call is one
};

// Immutable; any number of threads may use it.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  virtual std::string_view name() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual ChatAbilities abilities() const = 0;
  // kUnsupported: the model has no chats that could be read, and why. All below but end_token() wants it to be ok.
  virtual Status usable() const { return {}; }

  // What ChatOptions::functions has. kInvalidArgument names the function.
  virtual Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const = 0;
  // The tokens of a conversation. All content is plain text: no content makes a special token. kInvalidArgument names the message.
  virtual Result<std::vector<int32_t>> prompt(const Conversation& conversation) const = 0;
  // What a prompt that asks for the next message goes on with, so that the answer is the arguments of a call.
  virtual Result<std::vector<int32_t>> call_start(const std::string& function,
                                                  std::optional<bool> thinking) const = 0;
  // Takes reasoning out that no prompt shows any more: what is kept of a conversation is what its prompt has.
  virtual void forget_old_reasoning(std::vector<Message>* messages) const = 0;

  // Of an answer to a prompt with kNextMessage and this ChatOptions::thinking.
  virtual std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const = 0;
  virtual Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends,
                                                 std::optional<bool> thinking) const = 0;
  // Tokens that belong to the format and never to what is said.
  virtual bool is_frame(int32_t id) const { return tokenizer().is_special(id); }

  virtual std::vector<int32_t> stop_tokens() const = 0;  // what ends an answer, beside the model's own
  virtual int32_t end_token() const = 0;                 // what ends a text that is complete
};
using ChatFormatPointer = std::shared_ptr<const ChatFormat>;

// What a checkpoint's files say of its chats.
struct ChatFiles {
  Tokenizer tokenizer;
  std::optional<std::string> chat_template = {};  // Jinja
  std::vector<int32_t> stop_tokens = {};          // the model's own
};

struct ChatFormatEntry {
  std::string_view name;
  bool (*fits)(const ChatFiles& files);  // whether the files ask for it
  Result<ChatFormatPointer> (*open)(const ChatFiles& files);
};

// In the order in which they are tried.
std::vector<std::string> chat_format_names();
// `name`: one of these, or "auto": the first one that fits. Where none does the format is not usable(), and says why.
// kInvalidArgument: a name that is none. kUnsupported: what the tokenizer lacks for it, or neither a format nor a token that ends a text.
Result<ChatFormatPointer> open_chat_format(const std::string& name, const ChatFiles& files);

}  // namespace sluice
