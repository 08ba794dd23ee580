// Guides an answer in ChatML to the part with a required structure.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "text/chat_gate.h"
#include "text/chatml.h"

namespace sluice {

// Optional reasoning, then text, then calls, as far as AnswerEnds allows them.
class ChatMlGate final : public ChatGate {
 public:
  enum class Begin : uint8_t {
    kReasoning,  // the prompt opened it
    kEither,
    kAnswer,
  };
  // Fails like Tokenizer::encode(); kInvalidArgument if `ends` allows neither text nor a call.
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
  // Shared by all answers of a request.
  struct Shared {
    ChatMl::Tokens tokens;
    AnswerEnds ends;
    Tokens behind_reasoning;         // line breaks
    std::vector<Tokens> call_heads;  // by function: the text after <tool_call>
    Tokens call_end;                 // from the end of the arguments to </tool_call>
    Tokens next_call;                // from </tool_call> to the next <tool_call>
  };
  explicit ChatMlGate(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  void go_to(Place place);
  void follow(const Tokens& way, Place leads_to);
  std::vector<int32_t> heads_next() const;

  std::shared_ptr<const Shared> shared_;
  Place place_ = Place::kStart;
  bool may_think_ = false;
  size_t at_ = 0;              // number of tokens already taken of the current fixed sequence
  std::vector<size_t> heads_;  // functions whose heads begin with the tokens so far
};

}  // namespace sluice
