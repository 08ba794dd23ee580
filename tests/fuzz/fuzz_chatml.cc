// Arbitrary bytes as the tokens of an answer: the parser repeats no text, and its events match its messages.
// Input: how the answer begins, then tokens (tests/fuzz/answers.h).
#include <cstdint>

#include "answers.h"
#include "text/chatml_parser.h"

namespace {

using namespace sluice;

const ChatMl& format() {
  static const ChatMl f =
      ChatMl::from(Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_qwen.json").value(),
                   ChatMlThinking::kSwitch)
          .value();
  return f;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ChatMl::Tokens t = format().tokens();
  const int32_t frame[] = {t.start, t.end, t.think, t.end_think, t.call, t.end_call, t.call, t.end};
  const auto ids = answer_tokens(format().tokenizer(), frame, data + 1, size - 1);
  ChatMlParser parser(format(), static_cast<PartParser::Begin>(data[0] % 3),
                      data[0] % 4 < 2 ? PartParser::Calls::kRead : PartParser::Calls::kText);
  check_answer(&parser, ids);
  return 0;
}
