// Parses a model's output in ChatML, token by token. Accepts any output.
#pragma once
#include <string>
#include <vector>

#include "text/chatml.h"
#include "text/hermes_call.h"
#include "text/part_parser.h"

namespace sluice {

// Line breaks before a call are not part of the text. Errors are handled as in PartParser, and as follows:
//   - <tool_call> inside reasoning is part of the reasoning, because reasoning may discuss calls.
//   - A call that is not a JSON object with a name becomes text.
//   - Members of a call other than name and arguments, and text after its object, go into `recovered`.
//   - A special token without a meaning at its place is ignored, and reported in `recovered`.
class ChatMlParser final : public PartParser {
 public:
  ChatMlParser(const ChatMl& format, Begin begin, Calls calls);
  std::vector<AnswerEvent> push(int32_t id) override;

 private:
  void open_call() override { call_ = {}; }
  void take_call(const std::string& text) override;
  void close_call(MessageEnd end) override;

  ChatMl format_;
  HermesCall call_;
};

}  // namespace sluice
