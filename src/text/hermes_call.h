// Parses one call in Hermes's form, {"name": "f", "arguments": {...}}, from pieces of text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Streams the text of the arguments once the name is known. If the arguments are a string that contains JSON, as in OpenAI's API, returns the
// contained JSON. Never fails: stray() has the parts that cannot be read.
class HermesCall {
 public:
  // Returns the new part of the arguments' text, which is empty until the name is known.
  std::string push(std::string_view text);
  // Call it at the end of the text. Returns the rest of the arguments' text.
  std::string finish();

  const std::optional<std::string>& name() const { return name_; }
  bool complete() const { return place_ == Place::kDone; }  // whether the object is closed
  const std::string& all() const { return all_; }           // the text so far
  // Other members, and text that follows the object or is not JSON.
  const std::string& stray() const { return stray_; }

 private:
  enum class Place : uint8_t {
    kBefore,
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kBehindValue,
    kDone,
    kBroken
  };
  enum class Member : uint8_t { kName, kArguments, kOther };
  void take(char c);
  void take_value(char c);
  void end_value();
  void end_object();
  std::string released();

  Place place_ = Place::kBefore;
  Member member_ = Member::kOther;
  std::optional<std::string> name_;
  bool has_arguments_ = false;
  std::string all_, stray_;
  // the current key with its quotation marks, and the current value unless it is streamed
  std::string key_, value_;
  std::string arguments_;  // text not returned yet
  int64_t depth_ = 0;      // number of open brackets and braces inside the value
  bool in_string_ = false, escaped_ = false, streams_ = false;
};

}  // namespace sluice
