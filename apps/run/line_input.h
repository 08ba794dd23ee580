// Reads lines from a user or from a script.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "apps/run/line_editor.h"
#include "base/status.h"

namespace sluice::apps {

// A terminal gets a prompt, line editing and the history of this run; ~/.editrc may define keys. Other inputs are read line by line.
class LineInput {
 public:
  LineInput();
  bool terminal() const { return terminal_; }
  // Returns a line without its newline; none at the end of input. kIo: standard input cannot be read; kCorrupt: a line is too long.
  Result<std::optional<std::string>> next();

 private:
  bool terminal_;
  std::unique_ptr<LineEditor> editor_;  // null: no line editing
};

}  // namespace sluice::apps
