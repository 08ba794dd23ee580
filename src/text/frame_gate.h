// Restricts the tokens of an answer, in formats whose answers consist of reasoning, then text, then calls.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "text/chat_gate.h"

namespace sluice {

// The control tokens and fixed texts between the parts of an answer.
struct AnswerFrame {
  using Tokens = std::vector<int32_t>;
  int32_t end = 0;                   // the token that ends the answer
  int32_t think = 0, end_think = 0;  // the tokens around reasoning; only in formats that reason
  int32_t end_call = 0;              // the token that ends a call whose arguments are unconstrained
  Tokens after_reasoning = {};       // from end_think to the text; may be empty
  Tokens first_call = {};            // from the text to the first call
  Tokens next_call = {};  // from a call to the next one; begins with a different token than `finish`
  std::vector<Tokens> call_heads =
      {};                // for each function: the tokens up to its arguments; no head is a prefix of another
  Tokens call_end = {};  // from the end of the arguments to the end of the call
  Tokens finish = {};    // from the last call to the end of the answer
};

// Allows optional reasoning, then text, then calls, as far as AnswerEnds allows them.
class FrameGate final : public ChatGate {
 public:
  enum class Begin : uint8_t {
    kReasoning,  // the prompt ends inside the reasoning
    kEither,     // the answer begins with reasoning or without
    kAnswer,     // the answer has no reasoning
    kText,       // the prompt ends inside the text
  };
  // `frame.call_heads` belong to `ends.functions`. kInvalidArgument: `ends` allows neither text nor a call.
  static Result<std::unique_ptr<ChatGate>> make(AnswerFrame frame, const AnswerEnds& ends, Begin begin);

  std::unique_ptr<ChatGate> copy() const override { return std::make_unique<FrameGate>(*this); }
  void accept(int32_t id) override;
  void accept_content() override;

 private:
  enum class Place : uint8_t {
    kReasoning,
    kBehindReasoning,
    kStart,
    kText,
    kToCall,  // between the text or a call and the next call's head
    kCallHead,
    kArguments,
    kCallEnd,
    kBehindCall,
    kFinish,
    kDone
  };
  using Tokens = AnswerFrame::Tokens;
  // What all answers to a request share.
  struct Shared {
    AnswerFrame frame;
    AnswerEnds ends;
  };
  explicit FrameGate(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  void go_to(Place place);
  void follow(const Tokens& way, Place on_the_way, Place leads_to);
  std::vector<int32_t> heads_next() const;

  std::shared_ptr<const Shared> shared_;
  Place place_ = Place::kStart;
  bool may_think_ = false;
  const Tokens* to_call_ = nullptr;  // in kToCall: first_call or next_call
  size_t at_ = 0;                    // number of tokens read of the current fixed sequence
  std::vector<size_t> heads_;        // in kCallHead: functions whose heads begin with the tokens so far
};

}  // namespace sluice
