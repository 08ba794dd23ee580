// Splits an answer into reasoning, text and calls while it arrives. Shared by the parsers of formats with <think>.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/answer_parser.h"

namespace sluice {

// Line breaks around reasoning are not part of it. Errors are handled as follows. A "note" is a text in `recovered`.
//   - Without </think>, everything is reasoning. </think> without <think> becomes a note.
//   - Text after a call becomes a note.
//   - A call without an end is ended by the next call or by the end of the answer, with a note.
// A derived class interprets the tokens and parses the calls.
class PartParser : public AnswerParser {
 public:
  enum class Begin : uint8_t {
    kAnswer,
    kReasoning,  // the prompt ends inside the reasoning
    kText,       // the prompt ends inside the text
  };
  enum class Calls : uint8_t { kRead, kText };
  ParsedAnswer finish() override;

 protected:
  enum class Phase : uint8_t {
    kBefore,     // only line breaks so far
    kReasoning,  // inside reasoning
    kText,       // in the text, of this answer or of the message that it continues
    kCall,
  };
  // Whether the line breaks between a text and a call are part of the text.
  enum class LinesBeforeCall : uint8_t { kOfFrame, kOfText };
  // `end_call`: the text of the token that ends a call, for notes.
  PartParser(Begin begin, Calls calls, LinesBeforeCall lines, std::string_view end_call);

  Phase phase() const { return phase_; }
  Calls calls() const { return calls_; }
  const std::optional<ParsedMessage>& current() const { return current_; }

  // Derived classes call these for the tokens: on_think() only outside of reasoning; inside a call only on_end_call(), on_end(), on_text().
  void on_think();
  void on_end_think();
  void on_call();
  void on_end_call() { end_part(MessageEnd::kCall); }
  void on_end();
  void on_text(std::string_view bytes) { take(bytes_.push(bytes)); }
  void note(std::string_view what);
  std::vector<AnswerEvent> take_events();

  // Called for each call: open_call(), then take_call() for each piece of its text, then close_call(), even if the call is cut off.
  virtual void open_call() = 0;
  virtual void take_call(const std::string& text) = 0;
  virtual void close_call(MessageEnd end) = 0;

  // The current message. close() does nothing without a message; add() does nothing without text.
  void open(Message message);
  void add(const std::string& text);
  void close(MessageEnd end);
  // Turns a call that cannot be read into text.
  void close_as_text(const std::string& call, MessageEnd end);

 private:
  void begin();
  void take(const std::string& text);
  void say(std::string_view text);
  void end_part(MessageEnd end);

  Begin begin_;
  Calls calls_;
  LinesBeforeCall lines_;
  std::string end_call_;
  Phase phase_ = Phase::kBefore;
  bool after_reasoning_ = false;  // reasoning has ended, so line breaks before the text are not part of it
  bool after_call_ = false;       // a call has ended, so line breaks after it are not text
  std::string held_;              // line breaks (in kBefore: white space) that may not be part of the text
  Utf8Stream bytes_;
  std::optional<ParsedMessage> current_;  // set once the message has content, or the call a name
  ParsedAnswer done_;                     // `events` belong to the current push()
};

}  // namespace sluice
