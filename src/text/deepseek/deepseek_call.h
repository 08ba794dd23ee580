// Reads one call in DeepSeek's form from pieces of text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Between the tokens that begin and end a call:
//   fenced   function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```     also read without the fence
//   bare     NAME<｜tool▁sep｜>ARGUMENTS                             also read with a fence
// Streams the text of the arguments once the name is known. Never fails: stray() has the parts that cannot be read.
class DeepSeekCall {
 public:
  enum class Form : uint8_t { kFenced, kBare };
  explicit DeepSeekCall(Form form) : form_(form) {}

  // Returns the new part of the arguments' text, which is empty until the name is known.
  std::string push(std::string_view text);
  // Call it for <｜tool▁sep｜>, whose text is `piece`. Returns false and changes nothing if the call already has a separator.
  bool separate(std::string_view piece);
  // Call it at the end of the text. Returns the rest of the arguments' text, or "{}" if there are no arguments.
  enum class End : uint8_t { kClosed, kCutOff };
  std::string finish(End end);

  const std::optional<std::string>& name() const { return name_; }
  const std::string& all() const { return all_; }  // the text so far
  // A type other than "function", and text around the arguments other than a JSON fence.
  const std::string& stray() const { return stray_; }

 private:
  enum class Place : uint8_t {
    kHead,  // before the separator
    kName,  // after the separator, if the form is fenced
    kBeforeArguments,
    kFence,  // in the line that opens the fence
    kArguments,
  };
  void take(char c, std::string* out);
  void set_name();
  void end_fence();

  Form form_;
  Place place_ = Place::kHead;
  std::optional<std::string> name_;
  std::string all_, stray_;
  std::string head_;  // the type, the name or the line that opens the fence, so far
  std::string held_;  // white space and backticks after the arguments, which may be the end of the fence
  bool has_arguments_ = false;
};

}  // namespace sluice
