// Restricts the tokens of a harmony answer until the message with the required structure: the final message, or a function call.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/chat_gate.h"
#include "text/harmony.h"

namespace sluice {

// Allows at most one analysis message, then a final message or a call. Other channels, recipients and content types are forbidden,
// because they would bypass the structure. Starts after a prompt that ends with "<|start|>assistant", or inside
// the final message.
class AnswerGate {
 public:
  enum class Place : uint8_t {
    kHeader,    // next() lists the allowed tokens
    kAnalysis,  // text and <|end|> are allowed
    kFinal,     // in the content of the final message
    kCall,      // in the arguments of a call
  };
  // Fails like Tokenizer::encode(); kInvalidArgument if `ends` allows neither a message nor a call.
  static Result<AnswerGate> from(const Harmony& harmony, const AnswerEnds& ends);

  Place place() const { return place_; }
  size_t function() const { return function_; }  // the function of kCall
  std::vector<int32_t> next() const;
  void accept(int32_t id);  // a forbidden token selects the last header that was still possible

 private:
  struct Header {
    std::vector<int32_t> tokens;
    Place leads_to;
    size_t function = 0;
  };
  AnswerGate() = default;
  void arrive(const Header& header);
  std::shared_ptr<const std::vector<Header>> behind_analysis_;
  std::vector<Header> headers_;  // headers that begin with the tokens so far
  size_t at_ = 0;                // number of these tokens
  size_t function_ = 0;
  int32_t end_ = 0;
  Place place_ = Place::kHeader;
};

}  // namespace sluice
