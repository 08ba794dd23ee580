// One call as Hermes writes it, {"name": "f", "arguments": {...}}, from text that comes in pieces.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Gives the text of the arguments as it comes, as soon as the name is known. Arguments that stand in a string, as in OpenAI's own API, are
// taken out of it. Never fails: what it cannot read is in stray().
class HermesCall {
 public:
  // The arguments that are new; empty as long as there is no name.
  std::string push(std::string_view text);
  // The end of the text: the arguments that are left.
  std::string finish();

  const std::optional<std::string>& name() const { return name_; }
  bool complete() const { return place_ == Place::kDone; }  // the object is closed
  const std::string& all() const { return all_; }           // the text so far
  const std::string& stray() const {
    return stray_;
  }  // other members, and what follows the object or is no JSON

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
  std::string key_, value_;  // a key with its quotation marks; a value that is not given out as it comes
  std::string arguments_;    // that are not given out yet
  int64_t depth_ = 0;        // of brackets within the value
  bool in_string_ = false, escaped_ = false, streams_ = false;
};

}  // namespace sluice
