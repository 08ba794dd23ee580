// Parses a model's output in ChatML, token by token. Accepts any output.
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

// Line breaks around reasoning and before a call belong to the frame. Errors are handled as follows:
//   - no </think>: everything is reasoning. </think> without <think>: a note.
//   - <tool_call> inside reasoning: part of the reasoning, which may discuss calls.
//   - a call that is no JSON object with a name: text.
//   - no </tool_call>: the call ends at the next call, or with the answer.
//   - other members of a call, or text after its object: a note.
//   - a special token without a meaning at its place: a note, and otherwise ignored.
class ChatMlParser final : public AnswerParser {
 public:
  enum class Begin : uint8_t {
    kAnswer,
    kReasoning,  // the prompt opened it
  };
  enum class Calls : uint8_t { kRead, kText };
  ChatMlParser(const ChatMl& format, Begin begin, Calls calls);

  std::vector<AnswerEvent> push(int32_t id) override;
  ParsedAnswer finish() override;

 private:
  enum class Phase : uint8_t {
    kBefore,     // only line breaks so far
    kReasoning,  // reasoning may come
    kText,       // text has come
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
  bool behind_reasoning_ = false;  // line breaks before the text belong to the frame
  bool behind_call_ = false;       // the same after a call
  std::string held_;               // line breaks (in kBefore white space) that may belong to the frame
  Utf8Stream bytes_;
  std::optional<ParsedMessage> current_;  // set once the message has content, or the call a name
  HermesCall call_;
  ParsedAnswer done_;  // `events` belong to the current push()
};

}  // namespace sluice
