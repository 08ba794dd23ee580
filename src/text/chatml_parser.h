// What a model says in ChatML, token by token, whatever it says.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/answer_parser.h"
#include "text/chatml.h"
#include "text/hermes_call.h"

namespace sluice {

// Line ends around reasoning and before a call belong to the frame. What it makes of mistakes:
//   - no </think>: all is reasoning. </think> without <think>: a note.
//   - <tool_call> within reasoning: a part of it, as reasoning may speak of calls.
//   - a call that is no JSON object with a name: text.
//   - no </tool_call>: the call ends with the next one, or with the answer.
//   - other members of a call and text behind its object: a note.
//   - a special token that has no meaning at its place: a note, and nothing else.
class ChatMlParser final : public AnswerParser {
 public:
  enum class Begin : uint8_t {
    kAnswer,
    kReasoning,  // the prompt has opened it
  };
  enum class Calls : uint8_t { kRead, kText };
  ChatMlParser(const ChatMl& format, Begin begin, Calls calls);

  std::vector<AnswerEvent> push(int32_t id) override;
  ParsedAnswer finish() override;

 private:
  enum class Phase : uint8_t {
    kBefore,     // nothing but line ends so far
    kReasoning,  // its text may come
    kText,       // has come
    kCall,
  };
  void begin();
  void on_think();
  void on_end_think();
  void on_call();
  void on_end(MessageEnd end);
  void on_text(std::string_view bytes);
  void take(const std::string& text);
  void say(std::string_view text);
  void add(const std::string& text);
  void open(Message message);
  void close(MessageEnd end);
  void close_call(MessageEnd end);
  void end_part(MessageEnd end);
  void note(std::string_view what);

  ChatMl format_;
  Begin begin_;
  Calls calls_;
  Phase phase_ = Phase::kBefore;
  bool behind_reasoning_ = false;  // line ends before the text are of the frame
  bool behind_call_ = false;       // likewise
  std::string held_;               // line ends, or in kBefore white space, that may be of the frame
  Utf8Stream bytes_;
  std::optional<ParsedMessage> current_;  // once it has content, or a call its name
  HermesCall call_;
  ParsedAnswer done_;  // its events are those of the push() that runs
};

}  // namespace sluice
