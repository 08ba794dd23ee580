#include "text/hermes_call.h"

#include <utility>

#include "base/json.h"

namespace sluice {
namespace {

bool is_json_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Decodes a JSON string.
std::optional<std::string> string_of_json(std::string_view text) {
  const auto value = parse_json(text, "call");
  if (!value.ok() || !value.value().is_string()) return {};
  return value.value().get<std::string>();
}

}  // namespace

std::string HermesCall::push(std::string_view text) {
  all_ += text;
  for (const char c : text) take(c);
  return released();
}

std::string HermesCall::finish() {
  // An incomplete value is kept: the value of "arguments" in arguments_, any other in stray_.
  if (place_ == Place::kInValue && !streams_) (member_ == Member::kArguments ? arguments_ : stray_) += value_;
  if (place_ == Place::kInKey) stray_ += key_;
  return released();
}

std::string HermesCall::released() { return name_ ? std::exchange(arguments_, {}) : std::string(); }

void HermesCall::take(char c) {
  if (place_ == Place::kInValue) return take_value(c);
  if (place_ == Place::kInKey) {
    key_ += c;
    if (!escaped_ && c == '"') place_ = Place::kColon;
    escaped_ = !escaped_ && c == '\\';
    return;
  }
  if (place_ != Place::kBroken && is_json_blank(c)) return;
  if (place_ == Place::kBefore && c == '{') {
    place_ = Place::kKey;
  } else if (place_ == Place::kKey && c == '"') {
    key_ = c;
    escaped_ = false;
    place_ = Place::kInKey;
  } else if (place_ == Place::kColon && c == ':') {
    const std::string key = string_of_json(key_).value_or("");
    member_ = key == "name" && !name_                                          ? Member::kName
              : (key == "arguments" || key == "parameters") && !has_arguments_ ? Member::kArguments
                                                                               : Member::kOther;
    place_ = Place::kValue;
  } else if (place_ == Place::kValue && c != ',' && c != '}' && c != ']') {
    value_.clear();
    depth_ = 0;
    in_string_ = escaped_ = false;
    has_arguments_ = has_arguments_ || member_ == Member::kArguments;
    streams_ = member_ == Member::kArguments && c != '"';
    place_ = Place::kInValue;
    take_value(c);
  } else if (place_ == Place::kBehindValue && c == ',') {
    place_ = Place::kKey;
  } else if ((place_ == Place::kBehindValue || place_ == Place::kKey) && c == '}') {
    end_object();
  } else {
    stray_ += c;
    if (place_ != Place::kDone) place_ = Place::kBroken;
  }
}

void HermesCall::take_value(char c) {
  const bool bare = depth_ == 0 && !in_string_;
  // This character ends a value that is a number, true, false or null.
  if (bare && !value_.empty() && (c == ',' || c == '}' || is_json_blank(c))) {
    end_value();
    return take(c);
  }
  if (streams_) arguments_ += c;
  if (!streams_ || value_.empty()) value_ += c;
  if (in_string_) {
    if (!escaped_ && c == '"') in_string_ = false;
    escaped_ = !escaped_ && c == '\\';
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && depth_ > 0) {
    --depth_;
  }
  if (depth_ == 0 && !in_string_ && (c == '"' || c == '}' || c == ']')) end_value();
}

void HermesCall::end_value() {
  place_ = Place::kBehindValue;
  if (streams_) return;
  const auto text = string_of_json(value_);
  if (member_ == Member::kName && text && !text->empty())
    name_ = *text;
  else if (member_ == Member::kArguments)
    arguments_ += text && !text->empty() ? *text : "{}";
  else
    stray_ += key_ + ": " + value_;
}

void HermesCall::end_object() {
  place_ = Place::kDone;
  if (!has_arguments_) arguments_ = "{}";
}

}  // namespace sluice
