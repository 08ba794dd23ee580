// Arbitrary bytes as the tokens of an answer: the parser repeats no text, and its events match its messages.
// Input: the model and how the answer begins, then tokens (tests/fuzz/answers.h).
#include <cstdint>

#include "answers.h"
#include "text/deepseek/deepseek_parser.h"

namespace {

using namespace sluice;

const DeepSeek& format(bool fenced) {
  static const Tokenizer tokenizer =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_deepseek.json").value();
  static const DeepSeek r1 = DeepSeek::from(tokenizer, DeepSeekModel::kR1).value(),
                        v31 = DeepSeek::from(tokenizer, DeepSeekModel::kV31).value();
  return fenced ? r1 : v31;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const DeepSeek& model = format(data[0] % 8 < 4);
  const DeepSeek::Tokens t = model.tokens();
  const int32_t frame[] = {t.user, t.end, t.think,    t.end_think, t.calls,
                           t.call, t.sep, t.end_call, t.end_calls};
  const auto ids = answer_tokens(model.tokenizer(), frame, data + 1, size - 1);
  DeepSeekParser parser(model, static_cast<PartParser::Begin>(data[0] % 3),
                        data[0] % 4 < 2 ? PartParser::Calls::kRead : PartParser::Calls::kText);
  check_answer(&parser, ids);
  return 0;
}
