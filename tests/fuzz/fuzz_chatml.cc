// Any bytes as tokens of an answer: the parser repeats no text, and its events match its messages.
// Input: 0 to 7 are tokens of the frame, 8 takes an id from the two bytes after it, every other byte is its own token.
#include <cstdint>

#include "text/chatml_parser.h"

namespace {

using namespace sluice;

void require(bool ok) {
  if (!ok) __builtin_trap();
}

const ChatMl& format() {
  static const ChatMl f =
      ChatMl::from(Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_qwen.json").value(),
                   ChatMlThinking::kSwitch)
          .value();
  return f;
}

std::vector<int32_t> tokens_of(const uint8_t* data, size_t size) {
  const ChatMl::Tokens t = format().tokens();
  const int32_t frame[] = {t.start, t.end, t.think, t.end_think, t.call, t.end_call, t.call, t.end};
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < 8) {
      ids.push_back(frame[data[i]]);
    } else if (data[i] == 8 && i + 2 < size) {
      ids.push_back(data[i + 1] * 256 + data[i + 2] - 8);
      i += 2;
    } else {
      const char byte = static_cast<char>(data[i]);
      require(format().tokenizer().encode({&byte, 1}, Specials::kAsText, &ids).ok());
    }
  }
  return ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto ids = tokens_of(data + 1, size - 1);
  ChatMlParser parser(format(), data[0] % 2 ? ChatMlParser::Begin::kAnswer : ChatMlParser::Begin::kReasoning,
                      data[0] % 4 < 2 ? ChatMlParser::Calls::kRead : ChatMlParser::Calls::kText);
  std::string told, content;
  size_t headers = 0;
  const auto tell = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      told += event.text;
      headers += event.kind == AnswerEvent::Kind::kHeader;
    }
  };
  for (const int32_t id : ids) tell(parser.push(id));
  const ParsedAnswer parsed = parser.finish();
  tell(parsed.events);
  for (const ParsedMessage& m : parsed.messages) content += m.message.content;
  require(told == content && told == valid_utf8(told) && headers == parsed.messages.size());
  return 0;
}
