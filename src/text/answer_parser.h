// What a model says in its chat format, token by token.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_message.h"

namespace sluice {

// What ended a message. kNothing: the next message began, or the tokens ended.
enum class MessageEnd : uint8_t { kEnd, kCall, kReturn, kNothing };

struct AnswerEvent {
  enum class Kind : uint8_t {
    kHeader,  // a message begins: `message` has its header, its content is empty
    kText,    // `text` continues its content; valid UTF-8
    kEnd,     // it is complete; `end` says by what
  };
  Kind kind = Kind::kText;
  Message message;
  std::string text;
  MessageEnd end = MessageEnd::kNothing;
};

struct ParsedMessage {
  Message message;
  MessageEnd end = MessageEnd::kNothing;
  std::string recovered;  // what was wrong with it, for a log; empty if nothing was
};

struct ParsedAnswer {
  std::vector<ParsedMessage> messages;
  std::vector<AnswerEvent>
      events;             // those of the end: text that was held back, the end of an unfinished message
  std::string recovered;  // what was wrong between the messages
};

// Reads the tokens behind a prompt and recovers from everything that is not of the format. No plain text is lost: it is in a field of a
// message, or in a `recovered` note. Never fails. Not thread-safe; one parser a sequence.
class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  virtual std::vector<AnswerEvent> push(int32_t id) = 0;
  // The end of the tokens. The parser has nothing left afterwards, and reads the next answer as if it was new.
  virtual ParsedAnswer finish() = 0;
};

}  // namespace sluice
