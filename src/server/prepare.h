// Turns requests into input for the engine: tokens, and sampling parameters completed by the model's defaults.
#pragma once
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "chat/prompt_limit.h"
#include "engine/request.h"
#include "server/requests/request.h"
#include "server/setting_names.h"
#include "server/structured.h"
#include "text/chat_format.h"

namespace sluice {

struct ModelConfig;

// A model with the names under which clients request it. Thread-safe.
class ServedModel {
 public:
  // `options` are the defaults of chats. `names` is not empty. `model` and `format` must outlive this object.
  ServedModel(const ModelConfig& model, int64_t max_model_len, const ChatFormat& format, ChatOptions options,
              std::vector<std::string> names, const SettingNames& settings = {});

  struct Prepared {
    ApiRequest request;
    std::vector<std::vector<int32_t>> prompts;  // tokens
    std::vector<int32_t> forced;                // the last tokens of every prompt, which belong to the answer
    SamplingParams sampling;                    // of choice 0, with all defaults; choice i adds i to the seed
    MakeFilter make_filter = {};                // empty: the output is unconstrained
  };
  // These functions leave `make_filter` empty; constrain() sets it.
  Result<Prepared, ApiError> chat(std::string_view body) const;
  Result<Prepared, ApiError> response(std::string_view body, const FindResponse& stored) const;
  Result<Prepared, ApiError> completion(std::string_view body) const;
  // Whether constrain() compiles a grammar for the request.
  static bool compiles(const ApiRequest& request);
  // Compiles the structure that the answer must match. Once `stop` is requested, stops early and returns an error that no caller reads.
  std::optional<ApiError> constrain(Prepared* prepared, const std::stop_token& stop) const;
  Result<std::string, ApiError> tokenize(std::string_view body) const;    // returns JSON
  Result<std::string, ApiError> detokenize(std::string_view body) const;  // returns JSON

  const ChatFormat& format() const { return *format_; }
  const ApiLimits& limits() const { return limits_; }
  const std::vector<std::string>& names() const { return names_; }
  bool serves(const std::string& name) const;
  int64_t max_model_len() const { return limit_.max_model_len(); }

 private:
  Result<std::vector<int32_t>, ApiError> tokens_of(const ApiRequest& chat) const;
  Result<std::vector<int32_t>, ApiError> tokens_of(const std::string& text, Specials specials,
                                                   bool add_special_tokens) const;
  ApiError too_long(const std::string& found, const char* field) const;
  std::optional<ApiError> check_length(int64_t tokens, const char* field) const;
  std::optional<ApiError> check_scores(const Prepared& prepared) const;
  std::optional<ApiError> check_bytes(int64_t bytes, const char* field) const;
  // Checks that the chat format supports the request's options. Removes the supported ones from `ignored`.
  std::optional<ApiError> check_chat(ApiRequest* chat) const;
  std::optional<ApiError> make_prompt(Prepared* chat) const;
  Result<Prepared, ApiError> conversation(ApiRequest request) const;
  Result<Prepared, ApiError> finish(Prepared prepared) const;

  const ModelConfig* model_;
  const ChatFormat* format_;
  ChatOptions options_;
  std::vector<std::string> names_;
  SettingNames settings_;
  ApiLimits limits_;
  StructuredOutput structured_;
  PromptLimit limit_;
};

}  // namespace sluice
