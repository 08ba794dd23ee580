// The way of an answer in harmony to the message that is held to something: the final one, or a call of a function.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/chat_gate.h"
#include "text/harmony.h"

namespace sluice {

// At most one message of analysis, then a final message or a call. No other channel, recipient or type of content: what is held to
// something would be somewhere else then. Reads the tokens behind a prompt that ended with "<|start|>assistant".
class AnswerGate {
 public:
  enum class Place : uint8_t {
    kHeader,    // next() may come
    kAnalysis,  // text may come, and <|end|>
    kFinal,     // the content of the final message begins, or has begun
    kCall,      // the arguments of a call, likewise
  };
  // What Tokenizer::encode() says; kInvalidArgument where there is no end at all.
  static Result<AnswerGate> from(const Harmony& harmony, const AnswerEnds& ends);

  Place place() const { return place_; }
  size_t function() const { return function_; }  // that is called
  std::vector<int32_t> next() const;
  void accept(int32_t id);  // a token that may come; one that may not leads to the last place that is left

 private:
  struct Header {
    std::vector<int32_t> tokens;
    Place leads_to;
    size_t function = 0;
  };
  AnswerGate() = default;
  void arrive(const Header& header);
  std::shared_ptr<const std::vector<Header>> behind_analysis_;
  std::vector<Header> headers_;  // that begin with the tokens so far
  size_t at_ = 0;                // how many those are
  size_t function_ = 0;
  int32_t end_ = 0;
  Place place_ = Place::kHeader;
};

}  // namespace sluice
