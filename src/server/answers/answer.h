// Answers of the OpenAI API as JSON and as event streams. Nothing here knows a connection or the engine.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/answers/answer_choice.h"
#include "server/requests/request.h"

namespace sluice {

std::string error_json(const ApiError& error);
std::string models_json(const std::vector<std::string>& names, int64_t created, int64_t max_model_len);
std::string model_json(const std::string& name, int64_t created, int64_t max_model_len);
std::string tokenize_json(const std::vector<int32_t>& tokens, int64_t max_model_len);
std::string detokenize_json(const std::string& text);
std::string deleted_json(const std::string& id);
std::string version_json();
std::string status_json(const std::string& status);

struct AnswerHead {
  std::string id;       // of the request, without the prefix that its kind gives it
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string unique = {};  // no other answer's: calls and responses are named by it
};

// The answer to one request: `request.choices` answers to each of its prompts. Choice p * choices + i is the i-th of prompt p.
class Answer {
 public:
  // `prompts` are the tokens of each prompt, `forced` those that each of them ends with and that belong to the answer.
  static std::unique_ptr<Answer> make(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                                      const std::vector<std::vector<int32_t>>& prompts,
                                      const std::vector<int32_t>& forced);
  virtual ~Answer();

  // Takes the next token of a choice, and appends to `out` the events that it gives, if the request is for a stream. Tokens of a
  // choice that is done are dropped.
  void push(int64_t choice, const GeneratedToken& token, std::string* out);
  bool done(int64_t choice) const { return at(choice).done(); }  // nothing more is wanted of it
  bool done() const { return open_ == 0; }
  // Once all are done. The rest of the stream, or the whole answer.
  virtual std::string finish() = 0;
  // The end of a stream that an error ends.
  virtual std::string fail(const ApiError& error) = 0;
  // Of a response that is done, and to be stored.
  virtual std::shared_ptr<const StoredResponse> stored() const { return {}; }

  const std::string& id() const { return head_.id; }
  int64_t choices() const { return static_cast<int64_t>(choices_.size()); }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  FinishReason finish_reason(int64_t choice) const { return at(choice).finish(); }

 protected:
  Answer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
         const std::vector<std::vector<int32_t>>& prompts, const std::vector<int32_t>& forced);
  virtual void append(int64_t choice, const std::vector<AnswerPiece>& pieces, std::string* out) = 0;
  const AnswerChoice& at(int64_t choice) const { return *choices_[static_cast<size_t>(choice)]; }
  int64_t reasoning_tokens() const;

  Tokenizer tokenizer_;
  ApiKind kind_;
  bool stream_;
  std::optional<int64_t> logprobs_;
  bool generates_;  // what is drawn belongs to the answer
  AnswerHead head_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;

 private:
  std::vector<std::unique_ptr<AnswerChoice>> choices_;
  int64_t choices_each_;  // of a prompt
  int64_t open_ = 0;
};

}  // namespace sluice
