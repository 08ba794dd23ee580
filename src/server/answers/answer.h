// Writes answers of the OpenAI API as JSON or as event streams. Independent of connections and of the engine.
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
  std::string id;       // the request's id, without the prefix of the answer's kind ("chatcmpl-")
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string unique = {};  // differs for every answer; part of the ids of function calls and responses
};

// The answer to one request: `request.choices` choices for each of its prompts. Choice p * choices + i is choice i of prompt p.
class Answer {
 public:
  // `prompts`: the tokens of each prompt. `forced`: the last tokens of every prompt, if they belong to the answer.
  static std::unique_ptr<Answer> make(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                                      const std::vector<std::vector<int32_t>>& prompts,
                                      const std::vector<int32_t>& forced);
  virtual ~Answer();

  // Adds the next token to a choice. If the request streams, appends the token's events to `out`. Ignores tokens of a choice that is
  // done.
  void push(int64_t choice, const GeneratedToken& token, std::string* out);
  bool done(int64_t choice) const { return at(choice).done(); }  // the choice needs no more tokens
  bool done() const { return open_ == 0; }
  // Returns the rest of the stream, or the whole answer. Call it when all choices are done.
  virtual std::string finish() = 0;
  // Returns the last event of a stream that ends with `error`.
  virtual std::string fail(const ApiError& error) = 0;
  // The finished response if it is to be stored, else null.
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
  bool generates_;  // whether sampled tokens belong to the answer; false if max_tokens is 0
  AnswerHead head_;
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;

 private:
  std::vector<std::unique_ptr<AnswerChoice>> choices_;
  int64_t choices_each_;  // per prompt
  int64_t open_ = 0;
};

}  // namespace sluice
