// Reads the fields of a client's JSON object, once each and by name. Keeps the first error, and can list the fields that were
// not read.
#pragma once
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/requests/request.h"

namespace sluice {

class ApiFields {
 public:
  // `at` and `error` must outlive this object. An error is stored only if `error` has none yet.
  ApiFields(JsonAt at, std::optional<ApiError>* error);

  // The field if it is present and not null; counts it as read.
  std::optional<JsonAt> take(const std::string& name);
  std::optional<double> number(const std::string& name, double minimum, double maximum);
  std::optional<int64_t> integer(const std::string& name, int64_t minimum, int64_t maximum);
  bool boolean(const std::string& name, bool otherwise);
  std::string string(const std::string& name);
  // Rejects the field unless it is missing, null, or equal to a value in `neutral`, which is a JSON array.
  void refuse(const std::string& name, const char* neutral);
  void skip(const std::string& name) { known_.insert(name); }
  // Returns the unread fields that are not null, each with `prefix`. The list is limited, and long names are shortened.
  std::vector<std::string> unread(const std::string& prefix = "") const;
  // Calls `read` with the fields of a nested object. The first error there becomes an error of this object.
  void inside(const JsonAt& at, const std::function<void(ApiFields*)>& read);
  const Json& value() const { return at_.value(); }

  void fail(const Status& status);  // `status` must be an error of a JsonAt
  void fail(const JsonAt& at, std::string_view wanted) { fail(at.wrong(wanted)); }
  bool failed() const { return error_->has_value(); }

 private:
  JsonAt at_;
  std::optional<ApiError>* error_;
  std::set<std::string> known_;
};

// Parses a request's body. nullopt: `error` is set.
std::optional<Json> parse_body(std::string_view body, std::optional<ApiError>* error);

// Parses a body, which must be an object, and calls `read` with its fields and a T to fill. Returns the T or the first error.
template <class T, class Read>
Result<T, ApiError> read_body(std::string_view body, const Read& read) {
  std::optional<ApiError> error;
  T out;
  if (const auto json = parse_body(body, &error)) {
    ApiFields fields(JsonAt(*json, "body"), &error);
    if (!fields.failed()) read(&fields, &out);
  }
  if (error) return *error;
  return out;
}

// Reads the fields that all generation requests share (model, sampling, n, stop strings, stream) and rejects unsupported fields.
void read_common(ApiFields* fields, const ApiLimits& limits, ApiRequest* out);
// Reads the reasoning effort: "low", "medium" or "high". It is an error if another field has already set another effort.
void read_effort(const char* name, ApiFields* fields, ApiRequest* out);
// Reads chat_template_kwargs, the arguments of the chat format's template. Unknown names are ignored, as by templates.
void read_template_kwargs(ApiFields* fields, ApiRequest* out);
// Rejects members of `reasoning` that other servers support but Sluice does not.
void refuse_reasoning(ApiFields* reasoning);
void note_summary(ApiFields* reasoning, ApiRequest* out);  // a requested summary is added to `out->unmet`
// The path of a field in the body, such as "messages[3].content".
std::string field_of(const JsonAt& at);
// Adds the unread fields to `out->ignored`.
void note_unread(const ApiFields& fields, const std::string& prefix, ApiRequest* out);
// Adds to `ignored` the members of an object that are neither null nor in `known`, with their paths, such as "messages.content.x". Paths
// omit indices, and equal paths are added once.
void note_unread(const JsonAt& at, std::initializer_list<std::string_view> known,
                 std::vector<std::string>* ignored);

// Iterates over the elements of a JSON array without building a list of them, because a body may have millions.
class ItemsOf {
 public:
  explicit ItemsOf(JsonAt array) : array_(std::move(array)) {}
  size_t size() const { return array_.value().size(); }
  JsonAt operator[](size_t i) const {
    return {array_.value()[i], array_.where() + "[" + std::to_string(i) + "]"};
  }
  struct Iterator {
    const ItemsOf* items;
    size_t i;
    JsonAt operator*() const { return (*items)[i]; }
    Iterator& operator++() { return ++i, *this; }
    bool operator==(const Iterator&) const = default;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  JsonAt array_;
};
inline ItemsOf items_of(const JsonAt& at) { return ItemsOf(at); }

// Returns the index of the value in `words`. If it is not one of them, sets an error in `fields` and returns nullopt.
std::optional<size_t> read_word(const JsonAt& at, std::initializer_list<const char*> words,
                                ApiFields* fields);

Status wrong_width(const WideInteger& wide);  // the error about an integer that needs more than 64 bits

// Returns a member of a body that parse_body() has accepted. Its keys have the order of the text, which matters in schemas.
OrderedJson in_order(std::string_view body, const std::string& member);

// Reads token ids such as [1, 2, 3], each below `vocab`.
std::vector<int32_t> read_tokens(const JsonAt& at, int64_t vocab, ApiFields* fields);

}  // namespace sluice
