#include "text/deepseek/deepseek_parser.h"

#include <utility>

#include "base/json.h"

namespace sluice {
namespace {

DeepSeekCall::Form form_of(const DeepSeek& format) {
  return format.has_fences() ? DeepSeekCall::Form::kFenced : DeepSeekCall::Form::kBare;
}

bool is_json_object(const std::string& text) {
  const auto value = parse_json(text, "call");
  return value.ok() && value.value().is_object();
}

}  // namespace

DeepSeekParser::DeepSeekParser(const DeepSeek& format, Begin begin, Calls calls)
    : PartParser(begin, calls, LinesBeforeCall::kOfText, "<｜tool▁call▁end｜>"),
      format_(format),
      call_(form_of(format)) {}

std::vector<AnswerEvent> DeepSeekParser::push(int32_t id) {
  const DeepSeek::Tokens& t = format_.tokens();
  const Tokenizer& tokenizer = format_.tokenizer();
  const bool in_call = phase() == Phase::kCall, in_reasoning = phase() == Phase::kReasoning;
  const bool is_think = id == t.think || id == t.end_think;
  const bool is_call = id == t.calls || id == t.call || id == t.sep || id == t.end_call || id == t.end_calls;
  if (id == t.end)
    on_end();
  else if (id == t.think && !in_call && !in_reasoning)
    on_think();
  else if (id == t.end_think && !in_call)
    on_end_think();
  else if (is_call && !in_reasoning && calls() == Calls::kRead) {
    if (!on_call_token(id)) note(std::string(tokenizer.piece(id)) + " has no meaning here");
  } else if (format_.is_frame(id) && !is_think && !is_call)
    note(std::string(tokenizer.piece(id)) + " has no meaning here");
  else
    on_text(tokenizer.decode({&id, 1}));
  return take_events();
}

// Handles a token of calls. Returns false if the token has no meaning at its place.
bool DeepSeekParser::on_call_token(int32_t id) {
  const DeepSeek::Tokens& t = format_.tokens();
  const bool in_call = phase() == Phase::kCall;
  if (id == t.call) return on_call(), true;
  if (id == t.calls) return !in_call;
  if (id == t.sep) return in_call && call_.separate(format_.tokenizer().piece(id));
  if (id == t.end_call) return in_call && (on_end_call(), true);
  if (in_call) {
    note("no <｜tool▁call▁end｜>");
    on_end_call();
  }
  return true;
}

void DeepSeekParser::open_call() { call_ = DeepSeekCall(form_of(format_)); }

void DeepSeekParser::take_call(const std::string& text) {
  const std::string arguments = call_.push(text);
  if (call_.name() && !current()) open(call_message(*call_.name(), {}));
  add(arguments);
}

void DeepSeekParser::close_call(MessageEnd end) {
  using End = DeepSeekCall::End;
  const std::string arguments = call_.finish(end == MessageEnd::kCall ? End::kClosed : End::kCutOff);
  if (call_.name() && !current()) open(call_message(*call_.name(), {}));
  if (!current()) {
    note("a call without a name");
    return close_as_text(call_.all(), end);
  }
  add(arguments);
  if (!is_json_object(current()->message.content)) note("arguments that are not a JSON object");
  if (!call_.stray().empty()) note("text outside a call: '" + call_.stray() + "'");
  close(end);
}

}  // namespace sluice
