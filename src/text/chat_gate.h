// The way of an answer to what is held to something: its text, or the arguments of a call.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

// Where an answer may lead to.
struct AnswerEnds {
  bool final_message = true;
  std::vector<std::string> functions = {};  // that may be called
  // Of gates, which are told what is held to something:
  std::vector<bool> free_arguments =
      {};                  // by function: arguments that nothing is said of; none: all are held
  bool held_text = false;  // the final message
  bool many_calls = true;  // one after the other, where the format has them
  bool begun = false;      // the prompt ends with ChatFormat::call_start() of the first function
};

// What may come next in an answer, as far as its format says so. One answer's; the filter of its tokens (src/server/structured.h) adds what
// the content must match.
class ChatGate {
 public:
  enum class Content : uint8_t {
    kNone,       // none may come: the frame alone
    kFree,       // any text
    kText,       // the final message begins, or has begun
    kArguments,  // those of a call, likewise
  };
  struct Step {
    Content content = Content::kNone;
    size_t function = 0;              // of kArguments
    std::vector<int32_t> frame = {};  // tokens that may come in any case
    std::vector<int32_t> ends = {};   // tokens that may come where the content is complete
  };

  virtual ~ChatGate() = default;
  virtual std::unique_ptr<ChatGate> copy() const = 0;
  const Step& step() const { return step_; }
  virtual void accept(int32_t id) = 0;  // one of the step's frame or ends
  virtual void accept_content() = 0;    // a token of the content

 protected:
  Step step_;
};

}  // namespace sluice
