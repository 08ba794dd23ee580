#include "chat/reply.h"

namespace sluice {

void ReplyReader::take(const std::vector<AnswerEvent>& events) {
  for (const AnswerEvent& e : events) {
    if (e.kind == AnswerEvent::Kind::kHeader) current_ = e.message;
    if (e.kind != AnswerEvent::Kind::kText) continue;
    const Channel channel = is_reasoning(current_) ? Channel::kReasoning : Channel::kFinal;
    (channel == Channel::kReasoning ? reply_.reasoning : reply_.text) += e.text;
    if (sink_) sink_(channel, e.text);
  }
}

void ReplyReader::push(const GeneratedToken& token) {
  ++reply_.completion_tokens;
  reply_.finish = token.finish;
  reply_.cached_tokens = token.cached_tokens;
  reply_.tokens.push_back(token);
  take(parser_->push(token.id));
}

Reply ReplyReader::finish() {
  ParsedAnswer parsed = parser_->finish();
  take(parsed.events);
  reply_.recovered = parsed.recovered;
  for (ParsedMessage& m : parsed.messages) {
    if (!m.recovered.empty()) reply_.recovered += (reply_.recovered.empty() ? "" : "; ") + m.recovered;
    reply_.messages.push_back(std::move(m.message));
  }
  return std::move(reply_);
}

}  // namespace sluice
