// Reads the fields of a client's JSON object. Each field is read once by name. Keeps the first error, and can list the unread
// fields.
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

  // The field, if it is present and not null.
  std::optional<JsonAt> take(const std::string& name);
  std::optional<double> number(const std::string& name, double least, double most);
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most);
  bool boolean(const std::string& name, bool otherwise);
  std::string string(const std::string& name);
  // Rejects the field unless it is null or a value in `neutral`, a JSON array.
  void refuse(const std::string& name, const char* neutral);
  void skip(const std::string& name) { known_.insert(name); }
  // Returns the unread fields that are not null, each with `prefix`. The list is limited, and long names are shortened.
  std::vector<std::string> unread(const std::string& prefix = "") const;
  // Reads the fields of a nested object. Its first error becomes an error of this object.
  void inside(const JsonAt& at, const std::function<void(ApiFields*)>& read);
  const Json& value() const { return at_.value(); }

  void fail(const Status& status);  // `status` comes from a JsonAt
  void fail(const JsonAt& at, std::string_view wanted) { fail(at.wrong(wanted)); }
  bool failed() const { return error_->has_value(); }

 private:
  JsonAt at_;
  std::optional<ApiError>* error_;
  std::set<std::string> known_;
};

// None: `error` is set.
std::optional<Json> parse_body(std::string_view body, std::optional<ApiError>* error);

// Parses a body that must be an object and calls `read` with its fields and the result.
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

// Reads the fields that all generation requests share: model, sampling, n, stop strings and stream; rejects unsupported ones.
void read_common(ApiFields* fields, const ApiLimits& limits, ApiRequest* out);
// Reads "low", "medium" or "high". If two fields disagree, the second one is an error.
void read_effort(const char* name, ApiFields* fields, ApiRequest* out);
// Reads chat_template_kwargs: the arguments of the chat format's template. A template ignores unknown names.
void read_template_kwargs(ApiFields* fields, ApiRequest* out);
// Rejects members of `reasoning` that other servers support and Sluice does not.
void refuse_reasoning(ApiFields* reasoning);
void note_summary(ApiFields* reasoning, ApiRequest* out);  // adds to `out->unmet`
// The place of a field in the body: "messages[3].content".
std::string field_of(const JsonAt& at);
// Adds the unread fields to `out->ignored`.
void note_unread(const ApiFields& fields, const std::string& prefix, ApiRequest* out);
// Adds the members of an object that are neither null nor `known`, with the path of the object: "messages.content.x". Paths have no
// indices, and each is added once.
void note_unread(const JsonAt& at, std::initializer_list<std::string_view> known,
                 std::vector<std::string>* ignored);

// Iterates over the elements of a JSON array without copying them all: a body may have millions.
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

// Returns the index of the word in `words`. Any other value is an error of `fields`, and the result is none.
std::optional<size_t> read_word(const JsonAt& at, std::initializer_list<const char*> words,
                                ApiFields* fields);

Status wrong_width(const WideInteger& wide);  // of an integer in a body

// Returns a member of a body that parse_body() has accepted, with keys in the order of the text: schemas depend on that order.
OrderedJson in_order(std::string_view body, const std::string& member);

// Reads token ids such as [1, 2, 3], each below `vocab`.
std::vector<int32_t> read_tokens(const JsonAt& at, int64_t vocab, ApiFields* fields);

}  // namespace sluice
