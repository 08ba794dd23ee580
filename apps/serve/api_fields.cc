#include "apps/serve/api_fields.h"

#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr size_t kOrderedMax = 4096;          // values
constexpr std::string_view kBody = "body: ";  // before every place that a reader names

// Values in it, itself included.
size_t values_in(const Json& json) {
  size_t count = 1;
  if (json.is_structured())
    for (const Json& inside : json) count += values_in(inside);
  return count;
}

}  // namespace

ApiFields::ApiFields(JsonAt at, std::optional<ApiError>* error) : at_(std::move(at)), error_(error) {
  if (const Status status = at_.need_object(); !status.ok()) fail(status);
}

void ApiFields::fail(const Status& status) {
  if (failed()) return;
  ApiError error{.message = status.message};
  if (error.message.starts_with(kBody)) {
    error.message.erase(0, kBody.size());
    error.param = error.message.substr(0, error.message.find(": wanted"));
  }
  *error_ = std::move(error);
}

std::optional<JsonAt> ApiFields::take(const std::string& name) {
  known_.insert(name);
  if (failed() || !at_.has(name)) return {};
  return at_.at(name).value();
}

std::optional<double> ApiFields::number(const std::string& name, double least, double most) {
  const auto at = take(name);
  if (!at) return {};
  const auto value = at->number();
  if (value.ok() && value.value() >= least && value.value() <= most) return value.value();
  fail(*at, "a number from " + number_text(least) + " to " + number_text(most));
  return {};
}

std::optional<int64_t> ApiFields::integer(const std::string& name, int64_t least, int64_t most) {
  const auto at = take(name);
  if (!at) return {};
  const auto value = at->integer(least, most);
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
  fail(*at, allowed + ", because it is not supported");
}

std::vector<std::string> ApiFields::unread() const {
  std::vector<std::string> out;
  if (!at_.value().is_object()) return out;
  for (const auto& [name, value] : at_.value().items())
    if (!known_.contains(name)) out.push_back(name);
  return out;
}

std::optional<Json> parse_body(std::string_view body, std::optional<ApiError>* error) {
  auto json = parse_json(body, "body");
  if (json.ok()) return std::move(json).value();
  *error = ApiError{.message = json.status().message};
  return {};
}

std::vector<JsonAt> items_of(const JsonAt& at) {
  auto items = at.items();
  return std::move(items).value();
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

bool fits_in_order(const JsonAt& at, ApiFields* fields) {
  if (values_in(at.value()) <= kOrderedMax) return true;
  fields->fail(at, "at most " + std::to_string(kOrderedMax) + " values in its schemas");
  return false;
}

OrderedJson in_order(std::string_view body, const std::string& member) {
  // All else is dropped while it is read: an object of this kind looks through its members for each new one.
  const auto keep = [&](int depth, OrderedJson::parse_event_t event, const OrderedJson& value) {
    return depth != 1 || event != OrderedJson::parse_event_t::key || value == member;
  };
  OrderedJson all = OrderedJson::parse(body, keep, false);
  const auto found = all.is_object() ? all.find(member) : all.end();
  return found == all.end() ? OrderedJson() : std::move(*found);
}

// Not by JsonAt::items(): a prompt may have a hundred thousand of them.
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

}  // namespace sluice::apps
