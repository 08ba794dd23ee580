// Lines that somebody types, or that a script brings.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace sluice::apps {

// On a terminal a prompt, editing and the history of this run; ~/.editrc may set keys. From anywhere else the lines as they come.
class LineInput {
 public:
  LineInput();
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;
  bool terminal() const { return terminal_; }
  std::optional<std::string> next();  // without its newline; none: there are no more

 private:
  struct Editor;
  bool terminal_;
  std::unique_ptr<Editor> editor_;  // none: nothing to edit with
};

}  // namespace sluice::apps
