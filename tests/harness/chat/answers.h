// The messages that a parser reads from tokens, for tests of chat formats.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/answer_parser.h"

namespace sluice {

// Parses tokens and checks that events agree with messages, as they must for every stream.
inline ParsedAnswer parsed_answer(AnswerParser& parser, const std::vector<int32_t>& ids) {
  std::vector<AnswerEvent> events;
  for (const int32_t id : ids)
    for (AnswerEvent& event : parser.push(id)) events.push_back(std::move(event));
  ParsedAnswer parsed = parser.finish();
  events.insert(events.end(), parsed.events.begin(), parsed.events.end());
  size_t at = 0;
  std::string content;
  bool open = false;
  for (const AnswerEvent& event : events) {
    EXPECT_LT(at, parsed.messages.size());
    if (at >= parsed.messages.size()) break;
    const ParsedMessage& m = parsed.messages[at];
    if (event.kind == AnswerEvent::Kind::kHeader) {
      EXPECT_FALSE(open);
      open = true;
      EXPECT_EQ(event.message.content, "");
      EXPECT_EQ(event.message.recipient, m.message.recipient);
      EXPECT_EQ(is_reasoning(event.message), is_reasoning(m.message));
    } else if (event.kind == AnswerEvent::Kind::kText) {
      EXPECT_TRUE(open);
      EXPECT_EQ(event.text, valid_utf8(event.text));
      EXPECT_NE(event.text, "");
      content += event.text;
    } else {
      EXPECT_EQ(event.end, m.end);
      EXPECT_EQ(content, m.message.content);
      content.clear();
      open = false;
      ++at;
    }
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(at, parsed.messages.size());
  EXPECT_TRUE(parser.finish().messages.empty());
  return parsed;
}

// Renders messages as "reasoning(...)", "text(...)", "f(...)" and notes.
inline std::string shown(const ParsedAnswer& parsed) {
  std::string out;
  const auto note = [&](const std::string& text) {
    if (!text.empty()) out += "[" + text + "]";
  };
  for (const ParsedMessage& m : parsed.messages) {
    const std::string function = called_function(m.message.recipient);
    out += function.empty() ? is_reasoning(m.message)    ? "reasoning"
                              : is_final_text(m.message) ? "final"
                                                         : "text"
                            : function;
    out += "(" + m.message.content + ")";
    note(m.recovered);
  }
  note(parsed.recovered);
  return out;
}

}  // namespace sluice
