#include "server/requests/fields.h"

#include <algorithm>

#include "base/printable.h"

namespace sluice {
namespace {

constexpr std::string_view kBody = "body: ";           // the first part of every path in a JsonAt's error
constexpr size_t kParamMax = 200, kMessageMax = 2000;  // bytes; a client's names may be as long as a body
constexpr size_t kUnreadMax = 32;                      // limit of reported unknown fields of an object
constexpr size_t kIgnoredMax = 64;                     // limit of reported unknown fields of a request

// "messages[3].content[0]" becomes "messages.content.".
std::string without_indices(const std::string& field) {
  std::string out;
  bool index = false;
  for (const char c : field) {
    index = c == '[' || (index && c != ']');
    if (!index && c != ']') out += c;
  }
  return out + ".";
}

void ignore(std::string name, std::vector<std::string>* ignored) {
  if (ignored->size() < kIgnoredMax && std::find(ignored->begin(), ignored->end(), name) == ignored->end())
    ignored->push_back(std::move(name));
}

}  // namespace

ApiFields::ApiFields(JsonAt at, std::optional<ApiError>* error) : at_(std::move(at)), error_(error) {
  if (const Status status = at_.need_object(); !status.ok()) fail(status);
}

void ApiFields::fail(const Status& status) {
  if (failed()) return;
  ApiError error{.message = status.message};
  const size_t end = error.message.find(": wanted");
  // Removes "body: " from errors about fields. Errors about the body itself keep it, as in "body: wanted an object".
  if (error.message.starts_with(kBody) && end != std::string::npos && end >= kBody.size()) {
    error.param = shortened(error.message.substr(kBody.size(), end - kBody.size()), kParamMax);
    error.message.erase(0, kBody.size());
  }
  error.message = shortened(error.message, kMessageMax);
  *error_ = std::move(error);
}

std::optional<JsonAt> ApiFields::take(const std::string& name) {
  known_.insert(name);
  if (failed() || !at_.has(name)) return {};
  return at_.at(name).value();
}

std::optional<double> ApiFields::number(const std::string& name, double minimum, double maximum) {
  const auto at = take(name);
  if (!at) return {};
  const auto value = at->number();
  if (value.ok() && value.value() >= minimum && value.value() <= maximum) return value.value();
  fail(*at, "a number from " + number_text(minimum) + " to " + number_text(maximum));
  return {};
}

std::optional<int64_t> ApiFields::integer(const std::string& name, int64_t minimum, int64_t maximum) {
  const auto at = take(name);
  if (!at) return {};
  const auto value = at->integer(minimum, maximum);
  if (value.ok()) return value.value();
  fail(value.status());
  return {};
}

bool ApiFields::boolean(const std::string& name, bool otherwise) {
  const auto at = take(name);
  if (!at) return otherwise;
  const auto value = at->boolean();
  if (value.ok()) return value.value();
  fail(value.status());
  return otherwise;
}

std::string ApiFields::string(const std::string& name) {
  const auto at = take(name);
  if (!at) return {};
  auto value = at->string();
  if (value.ok()) return std::move(value).value();
  fail(value.status());
  return {};
}

void ApiFields::refuse(const std::string& name, const char* neutral) {
  const auto at = take(name);
  if (!at) return;
  const Json values = Json::parse(neutral);
  for (const Json& value : values)
    if (at->value() == value) return;
  std::string allowed = "null";
  for (const Json& value : values) allowed += " or " + value.dump();
  fail(*at, allowed + ", because other values are not supported");
}

std::vector<std::string> ApiFields::unread(const std::string& prefix) const {
  std::vector<std::string> out;
  if (!at_.value().is_object()) return out;
  for (const auto& [name, value] : at_.value().items())
    if (!known_.contains(name) && !value.is_null() && out.size() < kUnreadMax)
      out.push_back(prefix + shortened(name));
  return out;
}

void ApiFields::inside(const JsonAt& at, const std::function<void(ApiFields*)>& read) {
  std::optional<ApiError> error;
  ApiFields fields(at, &error);
  if (!error) read(&fields);
  if (error) fail({Code::kInvalidArgument, std::string(kBody) + error->message});
}

std::string field_of(const JsonAt& at) {
  return at.where().substr(at.where().starts_with(kBody) ? kBody.size() : 0);
}

void note_unread(const ApiFields& fields, const std::string& prefix, ApiRequest* out) {
  for (std::string& name : fields.unread(prefix)) ignore(std::move(name), &out->ignored);
}

// May be called for a million parts, so it does nothing but compare names unless a member is unknown.
void note_unread(const JsonAt& at, std::initializer_list<std::string_view> known,
                 std::vector<std::string>* ignored) {
  if (!at.value().is_object() || ignored->size() >= kIgnoredMax) return;
  for (const auto& [name, value] : at.value().get_ref<const Json::object_t&>())
    if (!value.is_null() && std::find(known.begin(), known.end(), name) == known.end())
      ignore(without_indices(field_of(at)) + shortened(name), ignored);
}

std::optional<Json> parse_body(std::string_view body, std::optional<ApiError>* error) {
  auto json = parse_json(body, "body");
  if (json.ok()) return std::move(json).value();
  *error = ApiError{.message = json.status().message};
  return {};
}

std::optional<size_t> read_word(const JsonAt& at, std::initializer_list<const char*> words,
                                ApiFields* fields) {
  std::string wanted;
  for (const char* const& word : words) {
    if (at.value() == word) return static_cast<size_t>(&word - words.begin());
    wanted += (wanted.empty() ? "\"" : " or \"") + std::string(word) + "\"";
  }
  fields->fail(at, wanted);
  return {};
}

Status wrong_width(const WideInteger& wide) {
  return {Code::kInvalidArgument, std::string(kBody) + wide.place +
                                      ": wanted an integer of at most 64 bits, found " +
                                      shortened(wide.text)};
}

OrderedJson in_order(std::string_view body, const std::string& member) {
  auto value = parse_ordered_json(body, "body", member);
  return value.ok() ? std::move(value).value() : OrderedJson();
}

// Does not use JsonAt::items(), which would be too slow for a prompt with a hundred thousand tokens.
std::vector<int32_t> read_tokens(const JsonAt& at, int64_t vocab, ApiFields* fields) {
  std::vector<int32_t> out;
  if (!at.value().is_array()) return fields->fail(at, "an array of token ids"), out;
  out.reserve(at.value().size());
  for (size_t i = 0; i < at.value().size(); ++i) {
    const JsonAt element(at.value()[i], "");
    const auto id = element.integer(0, vocab - 1);
    if (!id.ok()) {
      const JsonAt named(at.value()[i], at.where() + "[" + std::to_string(i) + "]");
      return fields->fail(named.integer(0, vocab - 1).status()), out;
    }
    out.push_back(static_cast<int32_t>(id.value()));
  }
  return out;
}

}  // namespace sluice
