// What answers are written with.
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

// An object with one member more, which is JSON already.
std::string with_member(std::string object, const char* key, const std::string& json);

// [{"token", "logprob", "bytes", "top_logprobs"}], as chats and responses have it.
std::string logprobs_of_chat(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens);
// {"text_offset", "token_logprobs", "tokens", "top_logprobs"}, as completions have it. Offsets count code points. Null stands for
// the log probabilities of a token that has none.
std::string logprobs_of_completion(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens);

}  // namespace sluice
