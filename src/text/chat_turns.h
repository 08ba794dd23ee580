// Shared by the prompt writers of formats in which one turn of the assistant contains reasoning, text and calls.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/chat_message.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

// One message of the template.
struct Turn {
  ChatRole role = ChatRole::kUser;
  std::string reasoning, text;
  std::vector<const Message*> calls;  // they point into the conversation
  enum class Part : uint8_t { kNone, kReasoning, kText, kFinalText, kCalls };
  Part last = Part::kNone;  // the last part of the assistant's turn
};

// Groups messages into turns. Successive messages of the assistant (reasoning, text, calls) share a turn. A final text ends the turn, a text
// before a call does not.
std::vector<Turn> turns_of(const std::vector<Message>& messages);

// Writes a prompt. Adjacent texts between control tokens are tokenized together, as in a rendered template.
class TokenWriter {
 public:
  // `specials`: whether the text of a special token becomes the token or stays text.
  TokenWriter(const Tokenizer& tokenizer, Specials specials) : tokenizer_(tokenizer), specials_(specials) {}
  void token(int32_t id) {
    flush();
    ids_.push_back(id);
  }
  void said(std::string_view text) { pending_ += text; }
  Result<std::vector<int32_t>> finish() {
    flush();
    if (!status_.ok()) return status_;
    return std::move(ids_);
  }

 private:
  void flush() {
    if (status_.ok()) status_ = tokenizer_.encode(pending_, specials_, &ids_);
    pending_.clear();
  }
  const Tokenizer& tokenizer_;
  Specials specials_;
  std::string pending_;
  std::vector<int32_t> ids_;
  Status status_;
};

}  // namespace sluice
