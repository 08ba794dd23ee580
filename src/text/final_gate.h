// The way of an answer in harmony to its final message, for answers of which only that is free to be anything.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "text/harmony.h"

namespace sluice {

// At most one message of analysis, then the final one. No other channel, no recipient and no type of content: what is in the final
// message would be somewhere else then. Reads the tokens behind a prompt that ended with "<|start|>assistant".
class FinalMessageGate {
 public:
  enum class Place : uint8_t {
    kHeader,    // next() may come
    kAnalysis,  // text may come, and <|end|>
    kFinal,     // the content of the final message begins, or has begun
  };
  static Result<FinalMessageGate> from(const Harmony& harmony);  // what Tokenizer::encode() says

  Place place() const { return place_; }
  std::vector<int32_t> next() const;
  void accept(int32_t id);  // a token that may come; one that may not leads to kFinal

 private:
  struct Header {
    std::vector<int32_t> tokens;
    Place leads_to;
  };
  FinalMessageGate() = default;
  std::shared_ptr<const Header> behind_analysis_;
  std::vector<Header> headers_;  // that begin with the tokens so far
  size_t at_ = 0;                // how many those are
  int32_t end_ = 0;
  Place place_ = Place::kHeader;
};

}  // namespace sluice
