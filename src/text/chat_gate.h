// Restricts an answer's tokens outside of the parts that must have a structure: the text of the final message, and the arguments of calls.
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
  bool held_text = false;  // whether the final message must have a structure
  bool many_calls = true;  // whether several calls are allowed, if the format supports them
  bool begun = false;      // the prompt ends with ChatFormat::call_start() of the first function
  bool continues = false;  // the prompt ends inside the final message, which must be allowed
};

// Tells which tokens the format allows next in an answer; one object per answer. The token filter (src/server/structured.h) restricts the
// tokens inside the content by a grammar.
class ChatGate {
 public:
  enum class Content : uint8_t {
    kNone,       // no content is allowed, only control tokens
    kFree,       // any text
    kText,       // in the final message
    kArguments,  // in the arguments of a call
  };
  struct Step {
    Content content = Content::kNone;
    size_t function = 0;              // index of the function; set for kArguments
    std::vector<int32_t> frame = {};  // control tokens that are allowed even if the content is not complete
    std::vector<int32_t> ends = {};   // tokens that are allowed once the content is complete
  };

  virtual ~ChatGate() = default;
  virtual std::unique_ptr<ChatGate> copy() const = 0;
  const Step& step() const { return step_; }
  virtual void accept(int32_t id) = 0;  // accepts a token of the step's `frame` or `ends`
  virtual void accept_content() = 0;    // accepts a token of the content

 protected:
  Step step_;
};

}  // namespace sluice
