#include "server/answers/answer_json.h"

#include <algorithm>
#include <cstdio>

#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {
namespace {

constexpr double kLogprobMin = -9999;  // replaces -infinity, which JSON lacks

double finite(float logprob) { return std::max<double>(logprob, kLogprobMin); }

// The token's text. A token that is not valid UTF-8 becomes for example "bytes:\xe2\x80", so that different tokens have different names.
std::string name_of(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view piece = tokenizer.piece(id);
  if (is_utf8(piece)) return std::string(piece);
  std::string out = "bytes:";
  for (const char c : piece) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "\\x%02x", static_cast<unsigned char>(c));
    out += byte;
  }
  return out;
}

void end_list(std::string* out) {
  if (out->back() == ',') out->pop_back();
  *out += ']';
}

// Appends {"token": "a", "logprob": -0.5, "bytes": [97] without the closing brace, so that the caller can add members.
void append_token(const Tokenizer& tokenizer, int32_t id, float logprob, std::string* out) {
  *out += "{\"token\":" + json_text(name_of(tokenizer, id)) + ",\"logprob\":" + number_text(finite(logprob)) +
          ",\"bytes\":[";
  for (const char c : tokenizer.piece(id)) *out += std::to_string(static_cast<unsigned char>(c)) + ',';
  end_list(out);
}

void append_score(const std::string& name, float logprob, std::string* out) {
  *out += name;
  *out += ':';
  *out += number_text(finite(logprob));
  *out += ',';
}

}  // namespace

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string with_member(std::string object, const char* key, const std::string& json) {
  object.pop_back();
  object += object == "{" ? "\"" : ",\"";
  object += key;
  object += "\":";
  object += json;
  object += '}';
  return object;
}

// Writes text directly instead of building JSON values, because an answer may have a hundred million of them.
std::string logprobs_of_chat(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens) {
  std::string out = "[";
  for (const TextToken& t : tokens) {
    append_token(tokenizer, t.id, *t.logprob, &out);
    out += ",\"top_logprobs\":[";
    for (const TokenLogprob& likely : t.top_logprobs) {
      append_token(tokenizer, likely.id, likely.logprob, &out);
      out += "},";
    }
    end_list(&out);
    out += "},";
  }
  end_list(&out);
  return out;
}

std::string logprobs_of_completion(const Tokenizer& tokenizer, const std::vector<TextToken>& tokens) {
  std::string offsets = "[", logprobs = "[", names = "[", tops = "[";
  for (const TextToken& t : tokens) {
    const std::string name = name_of(tokenizer, t.id);
    offsets += std::to_string(t.characters) + ',';
    names += json_text(name) + ',';
    logprobs += (t.logprob ? number_text(finite(*t.logprob)) : "null") + ',';
    if (!t.logprob) {
      tops += "null,";
      continue;
    }
    tops += '{';
    bool listed = false;
    for (const TokenLogprob& likely : t.top_logprobs) {
      listed = listed || likely.id == t.id;
      append_score(json_text(name_of(tokenizer, likely.id)), likely.logprob, &tops);
    }
    if (!listed) append_score(json_text(name), *t.logprob, &tops);
    tops.back() = '}';
    tops += ',';
  }
  for (std::string* list : {&offsets, &logprobs, &names, &tops}) end_list(list);
  return "{\"text_offset\":" + offsets + ",\"token_logprobs\":" + logprobs + ",\"tokens\":" + names +
         ",\"top_logprobs\":" + tops + "}";
}

}  // namespace sluice
