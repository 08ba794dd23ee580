// The fields of one JSON object from a client: each is read once by its name, the first error stays, and what nobody read is known.
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
  // `at` and `error` must outlive it. Errors go to `error` unless one is there.
  ApiFields(JsonAt at, std::optional<ApiError>* error);

  // The field, if it is there and not null.
  std::optional<JsonAt> take(const std::string& name);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  bool boolean(const std::string& name, bool otherwise);
  std::string string(const std::string& name);
  // Fields whose value must be null or one of `neutral`, a JSON array.
  void refuse(const std::string& name, const char* neutral);
  void skip(const std::string& name) { known_.insert(name); }
  // Fields that nobody has read and that are not null, with `prefix` before their names; a few of them, and long names cut.
  std::vector<std::string> unread(const std::string& prefix = "") const;
  // Reads the fields of an object in this one. The first error of theirs is one of these.
  void inside(const JsonAt& at, const std::function<void(ApiFields*)>& read);
  const Json& value() const { return at_.value(); }

  void fail(const Status& status);  // of a JsonAt
  void fail(const JsonAt& at, std::string_view wanted) { fail(at.wrong(wanted)); }
  bool failed() const { return error_->has_value(); }

 private:
  JsonAt at_;
  std::optional<ApiError>* error_;
  std::set<std::string> known_;
};

// None: the error is set.
std::optional<Json> parse_body(std::string_view body, std::optional<ApiError>* error);

// Reads a body that is an object with `read`, which gets its fields and the result.
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

// What requests for text have in common: the model, sampling, n, stop strings, the stream, and what is not supported.
void read_common(ApiFields* fields, const ApiLimits& limits, ApiRequest* out);
// "low", "medium" or "high". Of two fields that ask for another one the second is an error.
void read_effort(const char* name, ApiFields* fields, ApiRequest* out);
// chat_template_kwargs: what the chat format's template takes. Of names that it does not know a template takes no notice.
void read_template_kwargs(ApiFields* fields, ApiRequest* out);
// What `reasoning` may ask for in other servers and is not supported.
void refuse_reasoning(ApiFields* reasoning);
void note_summary(ApiFields* reasoning, ApiRequest* out);                               // in `out->unmet`
void note_unread(const ApiFields& fields, const std::string& prefix, ApiRequest* out);  // in `out->ignored`

// The elements of what is known to be an array, one at a time: a body may have millions of them.
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

// One of these words, as its place in them; an error of `fields` and none for anything else.
std::optional<size_t> read_word(const JsonAt& at, std::initializer_list<const char*> words,
                                ApiFields* fields);

Status wrong_width(const WideInteger& wide);  // of a body

// A member of a body that parse_body() has read, its own members in the order of the text, which schemas are written in.
OrderedJson in_order(std::string_view body, const std::string& member);

// [1, 2, 3], each below `vocab`.
std::vector<int32_t> read_tokens(const JsonAt& at, int64_t vocab, ApiFields* fields);

}  // namespace sluice
