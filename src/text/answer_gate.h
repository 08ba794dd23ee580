// Restricts the tokens of a harmony answer up to the message that must have a structure: the final message, or a function call.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/chat_gate.h"
#include "text/harmony.h"

namespace sluice {

// Allows at most one analysis message, then a final message or a call. Other channels, recipients and content types are forbidden,
// because a message with them would bypass the structure. The prompt must end with "<|start|>assistant", or inside the final
// message.
class AnswerGate {
 public:
  enum class Place : uint8_t {
    kHeader,    // between or in headers: only the tokens of next() are allowed
    kAnalysis,  // in the content of the analysis message: text and <|end|> are allowed
    kFinal,     // in the content of the final message
    kCall,      // in the arguments of a call
  };
  // kInvalidArgument: `ends` allows neither a message nor a call. Also returns errors of Tokenizer::encode().
  static Result<AnswerGate> from(const Harmony& harmony, const AnswerEnds& ends);

  Place place() const { return place_; }
  size_t function() const { return function_; }  // in kCall: index of the called function
  std::vector<int32_t> next() const;
  void accept(int32_t id);  // after a forbidden token, continues as if the last possible header were complete

 private:
  struct Header {
    std::vector<int32_t> tokens;
    Place leads_to;
    size_t function = 0;
  };
  AnswerGate() = default;
  void arrive(const Header& header);
  std::shared_ptr<const std::vector<Header>> headers_after_analysis_;
  std::vector<Header> headers_;  // the headers that begin with the header tokens so far
  size_t at_ = 0;                // number of header tokens so far
  size_t function_ = 0;
  int32_t end_ = 0;
  Place place_ = Place::kHeader;
};

}  // namespace sluice
