// How a model reads a conversation and writes its answer. Code outside of src/text uses only this interface, so models may differ. To add a
// format, add a file with a ChatFormatEntry, and list the entry in chat_formats.cc.
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

// The features that a format supports.
struct ChatAbilities {
  bool efforts = false;          // ChatOptions::effort
  bool thinking_switch = false;  // ChatOptions::thinking
  bool many_calls = false;       // several calls in one answer
  bool system_message = false;   // ChatOptions::model_identity, knowledge_cutoff and current_date
};

// Properties of the prompt that the parser of its answer needs.
struct AnswerContext {
  std::optional<bool> thinking = {};
  bool calls = false;      // whether tools are offered; if not, calls are treated as text
  bool continues = false;  // whether the prompt ends inside the final message's text
};

// Immutable and thread-safe.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;
  virtual std::string_view name() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual ChatAbilities abilities() const = 0;
  // kUnsupported: the model's chat format is unknown; the message says why. Then end_token() is the only function below that may be called.
  virtual Status usable() const { return {}; }

  // Returns the value for ChatOptions::functions. The message of kInvalidArgument names the function.
  virtual Result<std::string> functions_text(const std::vector<FunctionTool>& functions) const = 0;
  // Tokenizes a conversation. Content never becomes a special token. The message of kInvalidArgument names the conversation's message.
  virtual Result<std::vector<int32_t>> prompt(const Conversation& conversation) const = 0;
  // The value of `thinking` to pass to call_start(), parser() and gate() after a prompt of these messages, because some formats reason only
  // after certain messages.
  virtual std::optional<bool> thinking_after(const std::vector<Message>&,
                                             std::optional<bool> thinking) const {
    return thinking;
  }
  // Tokens to append to a prompt with kNextMessage, so that the answer is the arguments of a call.
  virtual Result<std::vector<int32_t>> call_start(const std::string& function,
                                                  std::optional<bool> thinking) const = 0;
  // Removes reasoning that later prompts will not contain, so that it is not stored with the conversation.
  virtual void forget_old_reasoning(std::vector<Message>* messages) const = 0;

  // `context` describes the prompt. The prompt must end as in kOpenMessage if `continues` is true, and as in kNextMessage otherwise.
  virtual std::unique_ptr<AnswerParser> parser(const AnswerContext& context) const = 0;
  virtual Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds& ends,
                                                 std::optional<bool> thinking) const = 0;
  // Whether the token is a control token of the format, and so never part of content.
  virtual bool is_frame(int32_t id) const { return tokenizer().is_special(id); }

  virtual std::vector<int32_t> stop_tokens() const = 0;  // they end an answer, in addition to the model's own
  // The token that ends a complete text; nullopt: the model has no special token for this, so grammars cannot be used.
  virtual std::optional<int32_t> end_token() const = 0;
};
using ChatFormatPointer = std::shared_ptr<const ChatFormat>;

// What a checkpoint's files say about chats.
struct ChatFiles {
  Tokenizer tokenizer;
  std::optional<std::string> chat_template = {};  // Jinja
  std::vector<int32_t> stop_tokens = {};          // the stop tokens of the model
  const char* option = "chat_format";  // users' name of the option that selects a format, for messages
};

// vLLM's and SGLang's names of a format's parsers, separated by blanks.
struct ParserNames {
  std::string_view reasoning = {}, tools = {};
};

struct ChatFormatEntry {
  std::string_view name;
  bool (*fits)(const ChatFiles& files);  // whether the model of these files uses the format
  Result<ChatFormatPointer> (*open)(const ChatFiles& files);
  ParserNames parsers = {};
};

// The names of all formats, in the order in which "auto" tries them.
std::vector<std::string> chat_format_names();
ParserNames parser_names(std::string_view format);  // all empty for an unknown format
// `name` is the name of an entry, or "auto" for the first format that fits. If no format fits, the result is a format that is not usable().
// kInvalidArgument: the name is unknown. kUnsupported: the tokenizer lacks tokens of the format.
Result<ChatFormatPointer> open_chat_format(const std::string& name, const ChatFiles& files);

}  // namespace sluice
