// Answers of arbitrary tokens, and properties that hold for the parser of every chat format.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/answer_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

inline void require(bool ok) {
  if (!ok) __builtin_trap();
}

// Bytes below frame.size() are tokens of the frame. The byte frame.size() takes an id from the next two bytes.
// Every other byte is its own token.
inline std::vector<int32_t> answer_tokens(const Tokenizer& tokenizer, std::span<const int32_t> frame,
                                          const uint8_t* data, size_t size) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < frame.size()) {
      ids.push_back(frame[data[i]]);
    } else if (data[i] == frame.size() && i + 2 < size) {
      ids.push_back(data[i + 1] * 256 + data[i + 2] - 8);
      i += 2;
    } else {
      const char byte = static_cast<char>(data[i]);
      require(tokenizer.encode({&byte, 1}, Specials::kAsText, &ids).ok());
    }
  }
  return ids;
}

// The parser repeats no text, and its events match its messages.
inline void check_answer(AnswerParser* parser, const std::vector<int32_t>& ids) {
  std::string told, content;
  size_t headers = 0;
  const auto tell = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      told += event.text;
      headers += event.kind == AnswerEvent::Kind::kHeader;
    }
  };
  for (const int32_t id : ids) tell(parser->push(id));
  const ParsedAnswer parsed = parser->finish();
  tell(parsed.events);
  for (const ParsedMessage& m : parsed.messages) content += m.message.content;
  require(told == content && told == valid_utf8(told) && headers == parsed.messages.size());
}

}  // namespace sluice
