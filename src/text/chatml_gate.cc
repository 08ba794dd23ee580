#include "text/chatml_gate.h"

#include <algorithm>
#include <utility>

namespace sluice {

Result<std::unique_ptr<ChatGate>> ChatMlGate::make(const ChatMl& format, const AnswerEnds& ends,
                                                   Begin begin) {
  if (!ends.final_message && ends.functions.empty())
    return invalid("answer: wanted text or a call to be allowed, found neither");
  Shared shared{.tokens = format.tokens(),
                .ends = ends,
                .behind_reasoning = {},
                .call_heads = {},
                .call_end = {},
                .next_call = {}};
  SLUICE_TRY(format.encode_frame("\n\n", &shared.behind_reasoning));
  SLUICE_TRY(format.encode_frame("}\n</tool_call>", &shared.call_end));
  SLUICE_TRY(format.encode_frame("\n<tool_call>", &shared.next_call));
  for (const std::string& function : ends.functions)
    SLUICE_TRY(format.encode_frame(hermes_call_head(function), &shared.call_heads.emplace_back()));
  ChatMlGate gate(std::make_shared<const Shared>(std::move(shared)));
  gate.may_think_ = begin == Begin::kEither && !ends.begun;
  if (ends.begun) gate.heads_ = {0};
  gate.go_to(ends.begun ? Place::kArguments : begin == Begin::kReasoning ? Place::kReasoning : Place::kStart);
  return std::unique_ptr<ChatGate>(std::make_unique<ChatMlGate>(std::move(gate)));
}

std::vector<int32_t> ChatMlGate::heads_next() const {
  std::vector<int32_t> out;
  for (const size_t f : heads_)
    if (const int32_t id = shared_->call_heads[f][at_]; std::find(out.begin(), out.end(), id) == out.end())
      out.push_back(id);
  return out;
}

void ChatMlGate::go_to(Place place) {
  const Shared& s = *shared_;
  place_ = place;
  at_ = 0;
  switch (place) {
    case Place::kReasoning:
      step_ = {.content = Content::kFree, .ends = {s.tokens.end_think}};
      break;
    case Place::kBehindReasoning:
      step_ = {.frame = {s.behind_reasoning.front()}};
      break;
    case Place::kStart:
      step_ = {};
      if (s.ends.final_message) step_ = {.content = Content::kText, .ends = {s.tokens.end}};
      if (may_think_) step_.frame.push_back(s.tokens.think);
      if (!s.ends.functions.empty()) step_.frame.push_back(s.tokens.call);
      break;
    case Place::kText:
      step_ = {.content = Content::kText, .ends = {s.tokens.end}};
      if (!s.ends.functions.empty() && !s.ends.held_text) step_.frame.push_back(s.tokens.call);
      break;
    case Place::kCallHead:
      heads_.resize(s.call_heads.size());
      for (size_t f = 0; f < heads_.size(); ++f) heads_[f] = f;
      step_ = {.frame = heads_next()};
      break;
    case Place::kArguments: {
      const size_t function = heads_.front();
      const bool free = function < s.ends.free_arguments.size() && s.ends.free_arguments[function];
      step_ = {.content = Content::kArguments,
               .function = function,
               .ends = {free ? s.tokens.end_call : s.call_end.front()}};
      break;
    }
    case Place::kCallEnd:
      step_ = {.frame = {s.call_end[at_]}};
      break;
    case Place::kBehindCall:
      step_ = {.frame = {s.tokens.end}};
      if (s.ends.many_calls && !s.ends.begun) step_.frame.push_back(s.next_call.front());
      break;
    case Place::kNextCall:
      step_ = {.frame = {s.next_call[at_]}};
      break;
    case Place::kDone:
      step_ = {};
      break;
  }
}

// Takes the next token of a fixed sequence.
void ChatMlGate::follow(const Tokens& way, Place leads_to) {
  if (++at_ == way.size()) return go_to(leads_to);
  step_ = {.frame = {way[at_]}};
}

void ChatMlGate::accept(int32_t id) {
  const Shared& s = *shared_;
  switch (place_) {
    case Place::kReasoning:
      may_think_ = false;
      return go_to(Place::kBehindReasoning);
    case Place::kBehindReasoning:
      return follow(s.behind_reasoning, Place::kStart);
    case Place::kStart:
    case Place::kText:
      return go_to(id == s.tokens.think  ? Place::kReasoning
                   : id == s.tokens.call ? Place::kCallHead
                                         : Place::kDone);
    case Place::kCallHead:
      std::erase_if(heads_, [&](size_t f) { return s.call_heads[f][at_] != id; });
      if (heads_.empty()) return go_to(Place::kDone);  // a token that may not come
      // No head is a prefix of another one, because names end with a quotation mark.
      if (++at_ == s.call_heads[heads_.front()].size()) return go_to(Place::kArguments);
      step_ = {.frame = heads_next()};
      return;
    case Place::kArguments:
      if (id == s.tokens.end_call) return go_to(Place::kBehindCall);
      place_ = Place::kCallEnd;
      return follow(s.call_end, Place::kBehindCall);
    case Place::kCallEnd:
      return follow(s.call_end, Place::kBehindCall);
    case Place::kBehindCall:
      if (id == s.tokens.end) return go_to(Place::kDone);
      place_ = Place::kNextCall;
      return follow(s.next_call, Place::kCallHead);
    case Place::kNextCall:
      return follow(s.next_call, Place::kCallHead);
    case Place::kDone:
      return;
  }
}

void ChatMlGate::accept_content() {
  if (place_ == Place::kStart) go_to(Place::kText);
}

}  // namespace sluice
