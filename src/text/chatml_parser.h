// Parses a model's output in ChatML, token by token. Accepts any output.
#pragma once
#include <string>
#include <vector>

#include "text/chatml.h"
#include "text/hermes_call.h"
#include "text/part_parser.h"

namespace sluice {

// Line breaks before a call belong to the frame. Errors are handled as PartParser does, and as follows:
//   - <tool_call> inside reasoning: part of the reasoning, which may discuss calls.
//   - a call that is not a JSON object with a name: becomes text.
//   - other members of a call, or text after its object: a note.
//   - a special token without a meaning at its place: a note, and otherwise ignored.
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
