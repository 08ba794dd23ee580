// Untrusted JSON: strict parsing, and reading with errors that name the file and the key.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps members in the order of the text

// kCorrupt names `what` (a file), the place and the reason: syntax, invalid UTF-8, more than 64 levels of
// nesting, or a duplicate key in an object.
Result<Json> parse_json(std::string_view text, std::string_view what);
// Like parse_json(), but keeps the members of every object in the order of the text. With `only`, returns
// only this member of the outermost object, or null if it is missing. Use this for untrusted text: nlohmann's
// own OrderedJson parser compares each key with all earlier keys, which takes quadratic time.
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what,
                                       std::optional<std::string_view> only = {});
// kIo: the file cannot be read. kCorrupt: it is larger than `bytes_max`, or parse_json rejects it.
Result<Json> read_json(const std::string& path, int64_t bytes_max);
// Returns the whole file, at most bytes_max bytes; errors as above.
Result<std::string> read_file(const std::string& path, int64_t bytes_max);

// An integer that does not fit into 64 bits. A Json would silently hold the nearest double.
struct WideInteger {
  std::string place;  // "a.b[2].c"
  std::string text;
};
// Finds the first such integer of the JSON `text` within the member at `path` (names, and array indices as
// digits). Exception: a bound in a JSON schema, such as "maximum", may be the text of a double, because some
// programs store all numbers as doubles.
std::optional<WideInteger> wide_integer(std::string_view text, std::span<const std::string> path = {});

// A value and its place ("config.json: rope_scaling.factor"). A view: the document must outlive it. Every
// reader returns kCorrupt with that place, what was wanted and what was found.
class JsonAt {
 public:
  JsonAt(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}
  const Json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  bool has(const std::string& key) const;  // the member exists and is not null
  Result<JsonAt> at(const std::string& key) const;
  Result<std::vector<JsonAt>> items() const;  // elements of an array
  Status need_object() const;

  Result<int64_t> integer(int64_t minimum, int64_t maximum) const;
  Result<double> number() const;  // finite
  Result<bool> boolean() const;
  Result<std::string> string() const;

  // Members by key. `otherwise` replaces a member that is missing or null.
  Result<int64_t> integer(const std::string& key, int64_t minimum, int64_t maximum) const;
  Result<int64_t> integer(const std::string& key, int64_t minimum, int64_t maximum, int64_t otherwise) const;
  Result<double> number(const std::string& key) const;
  Result<double> number(const std::string& key, double otherwise) const;
  Result<bool> boolean(const std::string& key, bool otherwise) const;
  Result<std::string> string(const std::string& key) const;
  Result<std::string> string(const std::string& key, const std::string& otherwise) const;

  Status wrong(std::string_view wanted) const;  // "<where>: wanted <wanted>, found <value>"

 private:
  const Json* value_;
  std::string where_;
};

}  // namespace sluice
