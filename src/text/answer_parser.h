// Parses a model's output in its chat format, token by token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_message.h"

namespace sluice {

// How a message ended. kNothing: no token ended it; the next message began, or there were no more tokens.
enum class MessageEnd : uint8_t { kEnd, kCall, kReturn, kNothing };

struct AnswerEvent {
  enum class Kind : uint8_t {
    kHeader,  // a message begins; `message` has its header and no content
    kText,    // `text` continues the content; valid UTF-8
    kEnd,     // the message is complete; `end` gives the reason
  };
  Kind kind = Kind::kText;
  Message message;
  std::string text;
  MessageEnd end = MessageEnd::kNothing;
};

struct ParsedMessage {
  Message message;
  MessageEnd end = MessageEnd::kNothing;
  std::string recovered;  // describes repaired format errors, for a log; empty: none
};

struct ParsedAnswer {
  std::vector<ParsedMessage> messages;
  // The events that push() has not returned: held-back text, and the end of an unfinished message.
  std::vector<AnswerEvent> events;
  std::string recovered;  // describes repaired format errors between the messages
};

// Parses the tokens after a prompt. Never fails: violations of the format are repaired, and text that belongs to no message goes into
// `recovered`, so that no text is lost. Not thread-safe; use one parser per sequence.
class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  virtual std::vector<AnswerEvent> push(int32_t id) = 0;
  // Call it after the last token. After that the parser can read another answer.
  virtual ParsedAnswer finish() = 0;
};

}  // namespace sluice
