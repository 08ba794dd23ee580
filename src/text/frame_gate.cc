#include "text/frame_gate.h"

#include <algorithm>
#include <utility>

namespace sluice {

Result<std::unique_ptr<ChatGate>> FrameGate::make(AnswerFrame frame, const AnswerEnds& ends, Begin begin) {
  if (!ends.final_message && ends.functions.empty())
    return invalid("answer: neither text nor a call is allowed; allow one of them");
  FrameGate gate(std::make_shared<const Shared>(Shared{.frame = std::move(frame), .ends = ends}));
  gate.may_think_ = begin == Begin::kEither && !ends.begun;
  if (ends.begun) gate.heads_ = {0};
  gate.go_to(ends.begun                   ? Place::kArguments
             : begin == Begin::kReasoning ? Place::kReasoning
             : begin == Begin::kText      ? Place::kText
                                          : Place::kStart);
  return std::unique_ptr<ChatGate>(std::make_unique<FrameGate>(std::move(gate)));
}

std::vector<int32_t> FrameGate::heads_next() const {
  std::vector<int32_t> out;
  for (const size_t f : heads_)
    if (const int32_t id = shared_->frame.call_heads[f][at_];
        std::find(out.begin(), out.end(), id) == out.end())
      out.push_back(id);
  return out;
}

void FrameGate::go_to(Place place) {
  const AnswerFrame& f = shared_->frame;
  const AnswerEnds& ends = shared_->ends;
  place_ = place;
  at_ = 0;
  switch (place) {
    case Place::kReasoning:
      step_ = {.content = Content::kFree, .ends = {f.end_think}};
      break;
    case Place::kBehindReasoning:
      if (f.after_reasoning.empty()) return go_to(Place::kStart);
      step_ = {.frame = {f.after_reasoning.front()}};
      break;
    case Place::kStart:
      step_ = {};
      if (ends.final_message) step_ = {.content = Content::kText, .ends = {f.end}};
      if (may_think_) step_.frame.push_back(f.think);
      if (!ends.functions.empty()) step_.frame.push_back(f.first_call.front());
      break;
    case Place::kText:
      step_ = {.content = Content::kText, .ends = {f.end}};
      if (!ends.functions.empty() && !ends.held_text) step_.frame.push_back(f.first_call.front());
      break;
    case Place::kCallHead:
      heads_.resize(f.call_heads.size());
      for (size_t i = 0; i < heads_.size(); ++i) heads_[i] = i;
      step_ = {.frame = heads_next()};
      break;
    case Place::kArguments: {
      const size_t function = heads_.front();
      const bool free = function < ends.free_arguments.size() && ends.free_arguments[function];
      step_ = {.content = Content::kArguments,
               .function = function,
               .ends = {free ? f.end_call : f.call_end.front()}};
      break;
    }
    case Place::kBehindCall:
      step_ = {.frame = {f.finish.front()}};
      if (ends.many_calls && !ends.begun) step_.frame.push_back(f.next_call.front());
      break;
    case Place::kToCall:
    case Place::kCallEnd:
    case Place::kFinish:  // set only by follow()
    case Place::kDone:
      step_ = {};
      break;
  }
}

// Accepts the next token of the fixed sequence `way`.
void FrameGate::follow(const Tokens& way, Place on_the_way, Place leads_to) {
  place_ = on_the_way;
  if (++at_ == way.size()) return go_to(leads_to);
  step_ = {.frame = {way[at_]}};
}

void FrameGate::accept(int32_t id) {
  const AnswerFrame& f = shared_->frame;
  switch (place_) {
    case Place::kReasoning:
      may_think_ = false;
      return go_to(Place::kBehindReasoning);
    case Place::kBehindReasoning:
      return follow(f.after_reasoning, place_, Place::kStart);
    case Place::kStart:
    case Place::kText:
      if (may_think_ && id == f.think) return go_to(Place::kReasoning);
      if (shared_->ends.functions.empty() || id != f.first_call.front()) return go_to(Place::kDone);
      to_call_ = &f.first_call;
      at_ = 0;
      return follow(*to_call_, Place::kToCall, Place::kCallHead);
    case Place::kToCall:
      return follow(*to_call_, place_, Place::kCallHead);
    case Place::kCallHead:
      std::erase_if(heads_, [&](size_t i) { return f.call_heads[i][at_] != id; });
      if (heads_.empty()) return go_to(Place::kDone);  // the token was not allowed
      if (++at_ == f.call_heads[heads_.front()].size()) return go_to(Place::kArguments);
      step_ = {.frame = heads_next()};
      return;
    case Place::kArguments:
      if (id == f.end_call) return go_to(Place::kBehindCall);
      return follow(f.call_end, Place::kCallEnd, Place::kBehindCall);
    case Place::kCallEnd:
      return follow(f.call_end, place_, Place::kBehindCall);
    case Place::kBehindCall:
      if (id == f.finish.front()) return follow(f.finish, Place::kFinish, Place::kDone);
      to_call_ = &f.next_call;
      return follow(*to_call_, Place::kToCall, Place::kCallHead);
    case Place::kFinish:
      return follow(f.finish, place_, Place::kDone);
    case Place::kDone:
      return;
  }
}

void FrameGate::accept_content() {
  if (place_ == Place::kStart) go_to(Place::kText);
}

}  // namespace sluice
