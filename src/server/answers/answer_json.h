// Helpers that write answers as JSON.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "server/answers/answer_choice.h"

namespace sluice {

std::string dump(const OrderedJson& json);
inline std::string json_text(const std::string& text) { return dump(OrderedJson(text)); }
inline OrderedJson or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

// Adds the member `key` with the value `json` (JSON text) at the end of the JSON object `object`.
std::string with_member(std::string object, const char* key, const std::string& json);

// Returns [{"token", "logprob", "bytes", "top_logprobs"}], the form of chats and responses.
std::string logprobs_of_chat(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens);
// Returns {"text_offset", "token_logprobs", "tokens", "top_logprobs"}, the form of completions. Offsets count code points. A token without a
// log probability has null.
std::string logprobs_of_completion(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens);

}  // namespace sluice
