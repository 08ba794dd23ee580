// What a model says in its chat format as an answer: the text for the user, and the reasoning apart.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/chat_format.h"

namespace sluice {

// One answer.
struct Reply {
  std::string text;               // the text for the user
  std::string reasoning;          // before it
  std::string recovered;          // what was wrong with the format, for a log; empty if nothing was
  std::vector<Message> messages;  // for the next turn
  FinishReason finish = FinishReason::kNone;  // kAbort: `stop` ended it
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt: found in the prefix cache
  double first_token_seconds = 0, seconds = 0;
  std::vector<GeneratedToken> tokens;  // all of the answer
};

// Which of the two a text belongs to.
enum class Channel : uint8_t { kReasoning, kFinal };
using TextSink = std::function<void(Channel, const std::string&)>;
// Turns the tokens of one answer into a Reply, streaming its text.
class ReplyReader {
 public:
  // Of an answer to a prompt of these options, which offers no functions.
  ReplyReader(const ChatFormat& format, const ChatOptions& options, TextSink sink)
      : parser_(format.parser({.thinking = options.thinking})), sink_(std::move(sink)) {}
  void push(const GeneratedToken& token);
  Reply finish();

 private:
  void take(const std::vector<AnswerEvent>& events);
  std::unique_ptr<AnswerParser> parser_;
  TextSink sink_;
  Message current_;
  Reply reply_;
};

}  // namespace sluice
