#include "apps/serve/answer_json.h"

#include <algorithm>
#include <cstdio>

#include "text/utf8.h"

namespace sluice::apps {
namespace {

constexpr double kLogprobLeast = -9999;  // JSON has no infinity

double finite(float logprob) { return std::max<double>(logprob, kLogprobLeast); }

// Its text; of a part of a character "bytes:\xe2\x80", so that two tokens never have one name.
std::string name_of(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view piece = tokenizer.piece(id);
  if (valid_utf8(piece) == piece) return std::string(piece);
  std::string out = "bytes:";
  for (const char c : piece) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "\\x%02x", static_cast<unsigned char>(c));
    out += byte;
  }
  return out;
}

OrderedJson token_object(const Tokenizer& tokenizer, int32_t id, float logprob) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : tokenizer.piece(id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", name_of(tokenizer, id)}, {"logprob", finite(logprob)}, {"bytes", bytes}};
}

}  // namespace

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

OrderedJson logprobs_of_chat(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens) {
  OrderedJson out = OrderedJson::array();
  for (const TextToken& t : tokens) {
    OrderedJson one = token_object(tokenizer, t.id, *t.logprob), top = OrderedJson::array();
    for (const TokenLogprob& likely : t.top_logprobs)
      top.push_back(token_object(tokenizer, likely.id, likely.logprob));
    one["top_logprobs"] = std::move(top);
    out.push_back(std::move(one));
  }
  return out;
}

OrderedJson logprobs_of_completion(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens) {
  OrderedJson out = {{"text_offset", OrderedJson::array()},
                     {"token_logprobs", OrderedJson::array()},
                     {"tokens", OrderedJson::array()},
                     {"top_logprobs", OrderedJson::array()}};
  for (const TextToken& t : tokens) {
    const std::string name = name_of(tokenizer, t.id);
    out["text_offset"].push_back(t.characters);
    out["tokens"].push_back(name);
    if (!t.logprob) {
      out["token_logprobs"].push_back(nullptr);
      out["top_logprobs"].push_back(nullptr);
      continue;
    }
    out["token_logprobs"].push_back(finite(*t.logprob));
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& likely : t.top_logprobs)
      top[name_of(tokenizer, likely.id)] = finite(likely.logprob);
    top[name] = finite(*t.logprob);
    out["top_logprobs"].push_back(std::move(top));
  }
  return out;
}

}  // namespace sluice::apps
