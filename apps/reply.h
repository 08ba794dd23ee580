// What a model says in harmony as an answer: the text for the user, and the reasoning apart.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "serve/request.h"
#include "text/harmony_parser.h"

namespace sluice::apps {

// One answer.
struct Reply {
  std::string text;               // the text for the user
  std::string reasoning;          // the analysis channel
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
  ReplyReader(const Harmony& harmony, TextSink sink)
      : parser_(harmony, HarmonyParser::Begin::kAssistant), sink_(std::move(sink)) {}
  void push(const GeneratedToken& token);
  Reply finish();

 private:
  void take(const std::vector<HarmonyEvent>& events);
  HarmonyParser parser_;
  TextSink sink_;
  Message current_;
  Reply reply_;
};

}  // namespace sluice::apps
