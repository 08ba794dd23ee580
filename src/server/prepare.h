// From what a client asks to what the engine computes: tokens, and parameters with the model's defaults.
#pragma once
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "chat/prompt_limit.h"
#include "engine/request.h"
#include "server/requests/request.h"
#include "server/structured.h"
#include "text/chat_format.h"

namespace sluice {

// A model under the names that clients know it by. Any number of threads may use it.
class ServedModel {
 public:
  // `options` hold for requests that do not say otherwise. At least one name. `model` and `format` outlive it.
  ServedModel(const ModelConfig& model, int64_t max_model_len, const ChatFormat& format, ChatOptions options,
              std::vector<std::string> names);

  struct Prepared {
    ApiRequest request;
    std::vector<std::vector<int32_t>> prompts;  // tokens
    std::vector<int32_t> forced;                // what each of them ends with, and is said by the model
    SamplingParams sampling;                    // of the first choice; the next one's seed is one more
    MakeFilter make_filter = {};                // none: nothing has to match
  };
  // These have no filter yet: constrain() makes it.
  Result<Prepared, ApiError> chat(std::string_view body) const;
  Result<Prepared, ApiError> response(std::string_view body, const FindResponse& stored) const;
  Result<Prepared, ApiError> completion(std::string_view body) const;
  // Whether constrain() compiles something for it.
  static bool compiles(const ApiRequest& request);
  // What the answer must match. Gives up, with an error that nobody reads, once it is asked to stop.
  std::optional<ApiError> constrain(Prepared* prepared, const std::stop_token& stop) const;
  Result<std::string, ApiError> tokenize(std::string_view body) const;    // the answer's JSON
  Result<std::string, ApiError> detokenize(std::string_view body) const;  // likewise

  const ChatFormat& format() const { return *format_; }
  const ApiLimits& limits() const { return limits_; }
  const std::vector<std::string>& names() const { return names_; }
  bool serves(const std::string& name) const;
  int64_t max_model_len() const { return limit_.max_model_len(); }

 private:
  Result<std::vector<int32_t>, ApiError> tokens_of(const ApiRequest& chat, PromptEnd end) const;
  Result<std::vector<int32_t>, ApiError> tokens_of(const std::string& text, Specials specials) const;
  std::optional<ApiError> check_length(int64_t tokens, const char* field) const;
  std::optional<ApiError> check_scores(const Prepared& prepared) const;
  std::optional<ApiError> check_bytes(int64_t bytes, const char* field) const;
  // Whether the model's format has a place for what a chat asks; what it takes is no longer ignored.
  std::optional<ApiError> check_chat(ApiRequest* chat) const;
  std::optional<ApiError> make_prompt(Prepared* chat, PromptEnd end) const;
  Result<Prepared, ApiError> conversation(ApiRequest request) const;
  Result<Prepared, ApiError> finish(Prepared prepared) const;

  const ModelConfig* model_;
  const ChatFormat* format_;
  ChatOptions options_;
  std::vector<std::string> names_;
  ApiLimits limits_;
  StructuredOutput structured_;
  PromptLimit limit_;
};

}  // namespace sluice
