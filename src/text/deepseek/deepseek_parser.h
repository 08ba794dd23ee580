// Parses a model's output in a format of DeepSeek, token by token. Accepts any output.
#pragma once
#include <string>
#include <vector>

#include "text/deepseek/deepseek.h"
#include "text/deepseek/deepseek_call.h"
#include "text/part_parser.h"

namespace sluice {

// Line breaks between a text and a call are part of the text. Errors are handled as in PartParser, and as follows:
//   - Tokens of calls inside reasoning are part of the reasoning, because reasoning may discuss calls.
//   - A call without a name becomes text.
//   - A type other than function, and arguments that are not a JSON object, are reported in `recovered`.
//   - A call that is not between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜> is parsed like any other call.
//   - Any other control token without a meaning at its place is ignored, and reported in `recovered`.
class DeepSeekParser final : public PartParser {
 public:
  DeepSeekParser(const DeepSeek& format, Begin begin, Calls calls);
  std::vector<AnswerEvent> push(int32_t id) override;

 private:
  bool on_call_token(int32_t id);
  void open_call() override;
  void take_call(const std::string& text) override;
  void close_call(MessageEnd end) override;

  DeepSeek format_;
  DeepSeekCall call_;
};

}  // namespace sluice
