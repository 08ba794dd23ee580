// JSON from outside: parsed without trust, and read with errors that name the file and the key.
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
using OrderedJson = nlohmann::ordered_json;  // members stay in the order in which they were written

// kCorrupt names `what` (a file), the place and the reason: syntax, invalid UTF-8, more than 64 levels of nesting, a key
// that stands twice in one object.
Result<Json> parse_json(std::string_view text, std::string_view what);
// The same, with the members of every object in the order of the text. `only`: of the outermost object this member alone, or null.
// The library's own parser of OrderedJson compares each key with all before it; text from outside comes through here.
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what,
                                       std::optional<std::string_view> only = {});
// kIo if the file cannot be read, kCorrupt if it is larger than `bytes_max` or parse_json refuses it.
Result<Json> read_json(const std::string& path, int64_t bytes_max);
// The whole of a file, at most bytes_max; errors as above.
Result<std::string> read_file(const std::string& path, int64_t bytes_max);

// An integer that 64 bits do not hold: as a Json it is the nearest double, which is another number.
struct WideInteger {
  std::string place;  // "a.b[2].c"
  std::string text;
};
// The first one of `text`, which is JSON, within the member that `path` leads to: names, and places in arrays as digits. A bound of a
// JSON schema, such as "maximum", may be one that a double is written as: programs that have doubles alone write it so.
std::optional<WideInteger> wide_integer(std::string_view text, std::span<const std::string> path = {});

// A value and where it stands ("config.json: rope_scaling.factor"). A view: the document must outlive it.
// Every reader says kCorrupt with that place, what was wanted and what was found.
class JsonAt {
 public:
  JsonAt(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}
  const Json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  bool has(const std::string& key) const;  // a member that is there and not null
  Result<JsonAt> at(const std::string& key) const;
  Result<std::vector<JsonAt>> items() const;  // of an array
  Status need_object() const;

  Result<int64_t> integer(int64_t least, int64_t most) const;
  Result<double> number() const;  // finite
  Result<bool> boolean() const;
  Result<std::string> string() const;

  // Members by key. With a default: what counts when the key is missing or null.
  Result<int64_t> integer(const std::string& key, int64_t least, int64_t most) const;
  Result<int64_t> integer(const std::string& key, int64_t least, int64_t most, int64_t otherwise) const;
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
