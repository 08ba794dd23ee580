// Parses a model's output in a format of DeepSeek, token by token. Accepts any output.
#pragma once
#include <string>
#include <vector>

#include "text/deepseek/deepseek.h"
#include "text/deepseek/deepseek_call.h"
#include "text/part_parser.h"

namespace sluice {

// Line breaks between a text and a call belong to the text. Errors are handled as PartParser does, and as follows:
//   - tokens of calls inside reasoning: part of the reasoning, which may discuss calls.
//   - a call without a name: becomes text.
//   - a type other than function, or arguments that are not a JSON object: a note.
//   - a call outside <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>: parsed like any other call.
//   - another frame token without a meaning at its place: a note, and otherwise ignored.
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
