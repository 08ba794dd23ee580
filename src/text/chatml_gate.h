// The way of an answer in ChatML to what is held to something.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "text/chat_gate.h"
#include "text/chatml.h"

namespace sluice {

// [reasoning], then text, then calls; of these what AnswerEnds allows.
class ChatMlGate final : public ChatGate {
 public:
  enum class Begin : uint8_t {
    kReasoning,  // the prompt has opened it
    kEither,
    kAnswer,
  };
  // What Tokenizer::encode() says; kInvalidArgument where there is no end at all.
  static Result<std::unique_ptr<ChatGate>> make(const ChatMl& format, const AnswerEnds& ends, Begin begin);

  std::unique_ptr<ChatGate> copy() const override { return std::make_unique<ChatMlGate>(*this); }
  void accept(int32_t id) override;
  void accept_content() override;

 private:
  enum class Place : uint8_t {
    kReasoning,
    kBehindReasoning,
    kStart,
    kText,
    kCallHead,
    kArguments,
    kCallEnd,
    kBehindCall,
    kNextCall,
    kDone
  };
  using Tokens = std::vector<int32_t>;
  // What all answers of one request share.
  struct Shared {
    ChatMl::Tokens tokens;
    AnswerEnds ends;
    Tokens behind_reasoning;         // line ends
    std::vector<Tokens> call_heads;  // of each function, behind <tool_call>
    Tokens call_end;                 // from the end of the arguments to </tool_call>
    Tokens next_call;                // from </tool_call> to <tool_call>
  };
  explicit ChatMlGate(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  void go_to(Place place);
  void follow(const Tokens& way, Place leads_to);
  std::vector<int32_t> heads_next() const;

  std::shared_ptr<const Shared> shared_;
  Place place_ = Place::kStart;
  bool may_think_ = false;
  size_t at_ = 0;              // tokens of the way that have come
  std::vector<size_t> heads_;  // functions whose heads begin with the tokens so far
};

}  // namespace sluice
