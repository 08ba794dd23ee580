// Answers of /v1/chat/completions and /v1/completions.
#pragma once
#include "server/answers/answer.h"
#include "server/answers/answer_json.h"

namespace sluice {

class TextAnswer final : public Answer {
 public:
  TextAnswer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
             const std::vector<std::vector<int32_t>>& prompts, const std::vector<int32_t>& forced);
  std::string finish() override;
  std::string fail(const ApiError& error) override;

 private:
  void append(int64_t choice, const std::vector<AnswerPiece>& pieces, std::string* out) override;
  OrderedJson stop_reason_of(int64_t choice) const;
  void append_event(int64_t choice, const std::string& member, const std::vector<TextToken>& tokens,
                    bool last, std::string* out) const;
  std::string delta_of(const AnswerPiece& piece, int64_t choice);
  OrderedJson message_of(int64_t choice) const;
  std::string logprobs_of(const std::vector<TextToken>& tokens) const;
  OrderedJson usage() const;
  std::string reason_of(int64_t choice) const;
  OrderedJson call_of(int64_t choice, int64_t call, const std::string& function) const;

  bool chat_, include_usage_, usage_in_each_event_;
  std::vector<int32_t> stop_token_ids_;  // of the request, sorted
  std::string event_head_;               // the beginning of every event
  std::vector<int64_t> calls_;           // by choice: function calls sent so far
  std::vector<bool> begun_;              // by choice: whether an event was sent
};

}  // namespace sluice
