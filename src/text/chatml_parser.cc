#include "text/chatml_parser.h"

namespace sluice {

ChatMlParser::ChatMlParser(const ChatMl& format, Begin begin, Calls calls)
    : PartParser(begin, calls, LinesBeforeCall::kOfFrame, "</tool_call>"), format_(format) {}

std::vector<AnswerEvent> ChatMlParser::push(int32_t id) {
  const ChatMl::Tokens& t = format_.tokens();
  const bool in_call = phase() == Phase::kCall, in_reasoning = phase() == Phase::kReasoning;
  if (id == t.end)
    on_end();
  else if (id == t.think && !in_call && !in_reasoning)
    on_think();
  else if (id == t.end_think && !in_call)
    on_end_think();
  else if (id == t.call && !in_reasoning && calls() == Calls::kRead)
    on_call();
  else if (id == t.end_call && in_call)
    on_end_call();
  else if (format_.tokenizer().is_special(id))
    note(std::string(format_.tokenizer().piece(id)) + " has no meaning here");
  else
    on_text(format_.tokenizer().decode({&id, 1}));
  return take_events();
}

void ChatMlParser::take_call(const std::string& text) {
  const std::string arguments = call_.push(text);
  if (call_.name() && !current()) open(call_message(*call_.name(), {}));
  add(arguments);
}

void ChatMlParser::close_call(MessageEnd end) {
  const std::string arguments = call_.finish();
  if (!current()) {
    note("a call without a name");
    return close_as_text(call_.all(), end);
  }
  add(arguments);
  if (!call_.complete()) note("an incomplete call");
  if (!call_.stray().empty()) note("text outside a call: '" + call_.stray() + "'");
  close(end);
}

}  // namespace sluice
