// Restricts an answer's tokens up to the part with a required structure: the final message's text, or a call's arguments.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

// What an answer may contain.
struct AnswerEnds {
  bool final_message = true;
  std::vector<std::string> functions = {};  // the functions that may be called
  // The fields below are used only by ChatGate.
  // For each function: whether its arguments are unconstrained. Empty: all arguments are constrained.
  std::vector<bool> free_arguments = {};
  bool held_text = false;  // the final message has a required structure
  bool many_calls = true;  // several calls in a row, if the format supports them
  bool begun = false;      // the prompt ends with ChatFormat::call_start() of the first function
  bool continues = false;  // the prompt ends inside the final message, which must be allowed
};

// The tokens that a format allows next in an answer. One object per answer. The token filter (src/server/structured.h) adds the structure
// of the content.
class ChatGate {
 public:
  enum class Content : uint8_t {
    kNone,       // no content: only frame tokens
    kFree,       // any text
    kText,       // in the final message
    kArguments,  // in the arguments of a call
  };
  struct Step {
    Content content = Content::kNone;
    size_t function = 0;              // index of the function; set for kArguments
    std::vector<int32_t> frame = {};  // frame tokens that are always allowed
    std::vector<int32_t> ends = {};   // tokens that are allowed once the content is complete
  };

  virtual ~ChatGate() = default;
  virtual std::unique_ptr<ChatGate> copy() const = 0;
  const Step& step() const { return step_; }
  virtual void accept(int32_t id) = 0;  // one of the step's `frame` or `ends`
  virtual void accept_content() = 0;    // a token of the content

 protected:
  Step step_;
};

}  // namespace sluice
