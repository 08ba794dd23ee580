// Follows a chat format's gate, for tests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/chat_format.h"

namespace sluice {

// A gate, with content that is complete at a final '!'.
class GateWalk {
 public:
  // `format` must outlive it.
  GateWalk(const ChatFormat& format, const AnswerEnds& ends, std::optional<bool> thinking)
      : format_(&format), gate_(format.gate(ends, thinking).value()) {}
  GateWalk(const GateWalk& other)
      : format_(other.format_), gate_(other.gate_->copy()), complete_(other.complete_) {}

  // Whether the gate allows every token of `text`. "||" is not part of the text; it only separates tokens.
  bool takes(std::string_view text) {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      const size_t cut = std::min(text.find("||", at), text.size());
      EXPECT_TRUE(format_->tokenizer().encode(text.substr(at, cut - at), Specials::kParse, &ids).ok());
      at = cut + 2;
    }
    for (const int32_t id : ids) {
      const ChatGate::Step& step = gate_->step();
      const auto has = [&](const std::vector<int32_t>& ids) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
      };
      const bool may_end = step.content == ChatGate::Content::kFree || complete_;
      if (has(step.frame) || (has(step.ends) && may_end)) {
        gate_->accept(id);
        complete_ = false;
      } else if (step.content != ChatGate::Content::kNone && !format_->is_frame(id)) {
        gate_->accept_content();
        complete_ = format_->tokenizer().piece(id).ends_with('!');
      } else {
        return false;
      }
    }
    return true;
  }
  ChatGate::Content content() const { return gate_->step().content; }
  size_t function() const { return gate_->step().function; }
  bool done() const { return content() == ChatGate::Content::kNone && gate_->step().frame.empty(); }

 private:
  const ChatFormat* format_;
  std::unique_ptr<ChatGate> gate_;
  bool complete_ = false;
};

}  // namespace sluice
