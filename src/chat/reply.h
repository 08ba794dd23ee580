// Splits a model's output, which is in its chat format, into the text for the user and the reasoning.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/chat_format.h"

namespace sluice {

struct Reply {
  std::string text;       // the text for the user
  std::string reasoning;  // the reasoning before it
  // describes repaired errors of the format, for a log; empty: none
  std::string recovered;
  std::vector<Message> messages;              // the answer's messages, for the prompt of the next turn
  FinishReason finish = FinishReason::kNone;  // kAbort: the caller stopped the answer
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  int64_t verifications = 0,
          // with speculative decoding: steps that verified drafts, and draft tokens accepted
      accepted_drafts = 0;
  double first_token_seconds = 0, seconds = 0;
  std::vector<GeneratedToken> tokens;  // all tokens of the answer
};

// Where a piece of text belongs.
enum class Channel : uint8_t { kReasoning, kFinal };
using TextSink = std::function<void(Channel, const std::string&)>;
// Turns the tokens of one answer into a Reply and streams its text.
class ReplyReader {
 public:
  // `options` are the options of the prompt, which must offer no tools.
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
