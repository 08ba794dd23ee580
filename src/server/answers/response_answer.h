// Answers of /v1/responses: a response object that consists of items, or stream events about the items.
#pragma once
#include "server/answers/answer.h"
#include "server/answers/answer_json.h"

namespace sluice {

class ResponseAnswer final : public Answer {
 public:
  ResponseAnswer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                 const std::vector<std::vector<int32_t>>& prompts, const std::vector<int32_t>& forced);
  std::string finish() override;
  std::string fail(const ApiError& error) override;
  std::shared_ptr<const StoredResponse> stored() const override { return stored_; }

 private:
  struct Item {
    AnswerPiece::Kind kind;  // kReasoning, kText or kCall
    std::string name = {};   // of the called function
    std::string text = {};   // the arguments, or the text
    std::vector<TextToken> tokens = {};
    bool open = true;
  };
  void append(int64_t choice, const std::vector<AnswerPiece>& pieces, std::string* out) override;
  void take(const AnswerPiece& piece, std::string* out);
  void begin_item(AnswerPiece::Kind kind, const std::string& name, std::string* out);
  void go_on(const AnswerPiece& piece, std::string* out);
  void end_item(std::string* out);
  // Appends an event of `type` with `members`, and, if `key` is not null, with the member `key` whose value is the JSON text `json`.
  void append_event(const char* type, OrderedJson members, std::string* out, const char* key = nullptr,
                    const std::string& json = {});
  void append_state(const char* type, const char* status, std::string* out);

  // The members that all events about the current item have.
  OrderedJson place() const;
  std::string id_of(size_t item) const;
  std::string call_id_of(size_t item) const { return "call_" + head_.unique + "_" + std::to_string(item); }
  // Whether JSON includes log probabilities, which are many times longer than the text.
  enum class Logprobs : uint8_t { kNone, kListed };
  std::string part_of(const Item& item, Logprobs logprobs) const;
  std::string object_of(size_t item, Logprobs logprobs) const;
  std::string object(const char* status) const;
  bool is_cut() const { return done() && at(0).finish() == FinishReason::kLength; }
  void store();

  ApiResponseFields fields_;
  ApiConversation conversation_;
  std::vector<Item> items_;
  // Whether `items_` are all items. A batch of tokens may end the answer and begin several items: until they have begun, events tell of an
  // answer in progress.
  bool ended_ = false;
  OrderedJson error_ = nullptr;
  int64_t events_ = 0;
  std::shared_ptr<const StoredResponse> stored_;
};

}  // namespace sluice
