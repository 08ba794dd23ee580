// Arbitrary bytes as the tokens of an answer: the parser loses and repeats no text, and its events match its
// messages.
// Input: bytes 0 to 7 are special tokens, byte 8 takes an id from the next two bytes, every other byte is its own token.
#include <algorithm>
#include <cstdint>

#include "text/harmony_parser.h"

namespace {

using namespace sluice;

void require(bool ok) {
  if (!ok) __builtin_trap();
}

const Harmony& harmony() {
  static const Harmony h =
      Harmony::from(Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value())
          .value();
  return h;
}

std::vector<int32_t> tokens_of(const uint8_t* data, size_t size) {
  static const char* const kSpecials[] = {"<|start|>",     "<|end|>",    "<|message|>", "<|channel|>",
                                          "<|constrain|>", "<|return|>", "<|call|>",    "<|endoftext|>"};
  const Tokenizer& tokenizer = harmony().tokenizer();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < 8) {
      ids.push_back(tokenizer.id_of(kSpecials[data[i]]).value());
    } else if (data[i] == 8 && i + 2 < size) {
      ids.push_back(data[i + 1] * 256 + data[i + 2] - 8);
      i += 2;
    } else {
      const char byte = static_cast<char>(data[i]);
      require(tokenizer.encode({&byte, 1}, Specials::kAsText, &ids).ok());
    }
  }
  return ids;
}

// The parser's own notes contain no digits, so all digits of the tokens must occur exactly once.
std::string digits_of(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out),
               [](char c) { return c >= '0' && c <= '9'; });
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto ids = tokens_of(data + 1, size - 1);
  using Begin = HarmonyParser::Begin;
  HarmonyParser parser(harmony(), static_cast<Begin>(data[0] % 3));
  std::string told, content;
  const auto tell = [&](const std::vector<HarmonyEvent>& events) {
    for (const HarmonyEvent& event : events) told += event.text;
  };
  for (const int32_t id : ids) tell(parser.push(id));
  const ParsedHarmony parsed = parser.finish();
  tell(parsed.events);
  std::string all = parsed.recovered;
  for (const ParsedMessage& m : parsed.messages) {
    content += m.message.content;
    all += m.message.name + m.message.channel + m.message.recipient + m.message.content_type + m.recovered;
  }
  require(told == content && told == valid_utf8(told));
  require(digits_of(all + content) == digits_of(harmony().tokenizer().decode(ids, SpecialOutput::kSkip)));
  return 0;
}
