#include "text/part_parser.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace

PartParser::PartParser(Begin begin, Calls calls, LinesBeforeCall lines, std::string_view end_call)
    : begin_(begin), calls_(calls), lines_(lines), end_call_(end_call) {
  this->begin();
}

void PartParser::begin() {
  phase_ = begin_ == Begin::kReasoning ? Phase::kReasoning
           : begin_ == Begin::kText    ? Phase::kText
                                       : Phase::kBefore;
  after_reasoning_ = after_call_ = false;
}

std::vector<AnswerEvent> PartParser::take_events() { return std::exchange(done_.events, {}); }

ParsedAnswer PartParser::finish() {
  if (phase_ == Phase::kReasoning && current_) note("no </think>");
  end_part(MessageEnd::kNothing);
  begin();
  return std::exchange(done_, {});
}

void PartParser::on_think() {
  if (phase_ == Phase::kText) note("<think> after text");
  if (phase_ == Phase::kBefore) held_.clear();
  end_part(MessageEnd::kNothing);
  phase_ = Phase::kReasoning;
}

void PartParser::on_end_think() {
  if (phase_ != Phase::kReasoning) return note("</think> without <think>");
  end_part(MessageEnd::kEnd);
  after_reasoning_ = true;
}

void PartParser::on_call() {
  if (phase_ == Phase::kCall) note("no " + end_call_);
  bool after_text = false;
  if (phase_ == Phase::kText || phase_ == Phase::kBefore) {
    const bool in_text = phase_ == Phase::kText;
    take(bytes_.finish());
    after_text = in_text && current_;
    if (after_text && lines_ == LinesBeforeCall::kOfText) add(held_);
    held_.clear();
  }
  end_part(MessageEnd::kEnd);
  // A call follows the text, so the text is not the final message.
  if (after_text) done_.messages.back().message.channel = text_message({}, Said::kBeforeCall).channel;
  phase_ = Phase::kCall;
  open_call();
}

void PartParser::on_end() {
  if (phase_ == Phase::kReasoning && current_) note("no </think>");
  if (phase_ == Phase::kCall) note("no " + end_call_);
  end_part(MessageEnd::kReturn);
}

// Adds text to the current part.
void PartParser::take(const std::string& text) {
  if (text.empty()) return;
  if (phase_ == Phase::kCall) return take_call(text);
  if (current_) return say(text);
  // Before the first word of the part. Line breaks in reasoning or after it are dropped; other white space is kept.
  held_ += text;
  const bool drops = phase_ == Phase::kReasoning || after_reasoning_;
  if (drops) held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  const bool is_blank = std::all_of(text.begin(), text.end(), is_space);  // earlier held text is always blank
  if (held_.empty() || (is_blank && phase_ == Phase::kBefore)) return;
  if (after_call_) {
    note("text after a call");
    held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
  }
  open(phase_ == Phase::kReasoning ? reasoning_message({}) : text_message({}, Said::kFinal));
  if (phase_ == Phase::kBefore) phase_ = Phase::kText;
  say(std::exchange(held_, {}));
}

// Emits text, but holds back trailing line breaks, which are not part of the text if the part ends here.
void PartParser::say(std::string_view text) {
  held_ += text;
  const size_t said = held_.find_last_not_of('\n') + 1;
  add(held_.substr(0, said));
  held_.erase(0, said);
}

void PartParser::add(const std::string& text) {
  if (text.empty()) return;
  current_->message.content += text;
  AnswerEvent& event = done_.events.emplace_back();
  event.text = text;
}

void PartParser::open(Message message) {
  current_.emplace().message = std::move(message);
  AnswerEvent& event = done_.events.emplace_back();
  event.kind = AnswerEvent::Kind::kHeader;
  event.message = current_->message;
}

void PartParser::close(MessageEnd end) {
  if (!current_) return;
  current_->end = end;
  AnswerEvent& event = done_.events.emplace_back();
  event.kind = AnswerEvent::Kind::kEnd;
  event.end = end;
  done_.messages.push_back(*std::exchange(current_, {}));
}

void PartParser::close_as_text(const std::string& call, MessageEnd end) {
  open(text_message({}, Said::kFinal));
  add(call);
  close(end);
}

void PartParser::end_part(MessageEnd end) {
  take(bytes_.finish());
  if (phase_ == Phase::kCall) {
    close_call(end);
    after_call_ = true;
  } else {
    // Trailing line breaks are part of a text that ends the answer. They are not part of reasoning, and on_call() handles those before a call.
    const bool is_text = phase_ == Phase::kText && end != MessageEnd::kEnd;
    if (is_text && current_) add(held_);
    if (phase_ == Phase::kBefore && !held_.empty() && !after_call_ && !after_reasoning_) {
      open(text_message({}, Said::kFinal));
      add(held_);
    }
    close(end);
    after_call_ = false;
  }
  held_.clear();
  after_reasoning_ = false;
  phase_ = Phase::kBefore;
}

void PartParser::note(std::string_view what) {
  std::string& notes = current_ ? current_->recovered : done_.recovered;
  if (notes.ends_with(what)) return;  // reports repeated errors once
  if (!notes.empty()) notes += "; ";
  notes += what;
}

}  // namespace sluice
