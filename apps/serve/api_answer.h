// Answers of the OpenAI API as JSON and as event streams. Nothing here knows a connection or the engine.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/serve/api_request.h"
#include "serve/request.h"

namespace sluice::apps {

std::string error_json(const ApiError& error);
// One event of a stream: the object of error_json(), then the end of the stream.
std::string error_event(const ApiError& error);
std::string models_json(const std::vector<std::string>& names, int64_t created, int64_t max_model_len);
std::string model_json(const std::string& name, int64_t created, int64_t max_model_len);
std::string tokenize_json(const std::vector<int32_t>& tokens, int64_t max_model_len);
std::string detokenize_json(const std::string& text);
std::string version_json();
std::string status_json(const std::string& status);

struct AnswerHead {
  std::string id;       // of the request, without the prefix that its kind gives it
  int64_t created = 0;  // seconds since 1970
  std::string model;
};

class AnswerChoice;

// The answer to one request: `choices` answers to each of its prompts. Choice p * choices + i is the i-th of prompt p.
class Answer {
 public:
  // `prompts` are the tokens of each prompt.
  Answer(const Harmony& harmony, const ApiRequest& request, AnswerHead head,
         const std::vector<std::vector<int32_t>>& prompts);
  ~Answer();

  // Takes the next token of a choice, and appends to `out` the events that it gives, if the request is for a stream. Tokens of a
  // choice that is done are dropped.
  void push(int64_t choice, const GeneratedToken& token, std::string* out);
  bool done(int64_t choice) const;  // nothing more is wanted of it
  bool done() const { return open_ == 0; }
  // Once all are done. The rest of the stream, or the whole answer.
  std::string finish() const;

  int64_t choices() const { return static_cast<int64_t>(choices_.size()); }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  std::string finish_reason(int64_t choice) const;

 private:
  void append_event(int64_t choice, const std::string& member, const std::string& reason,
                    std::string* out) const;
  std::string usage_json() const;

  ApiKind kind_;
  bool stream_, include_usage_;
  AnswerHead head_;
  std::string event_head_;  // what every event begins with
  std::vector<std::unique_ptr<AnswerChoice>> choices_;
  int64_t choices_each_;  // of a prompt
  int64_t open_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
};

}  // namespace sluice::apps
