// Reads lines from a user or from a script.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "apps/run/line_editor.h"
#include "base/status.h"

namespace sluice::apps {

// On a terminal, users have a prompt, line editing and the history of this run, and ~/.editrc may define keys. Other input is read line by line.
class LineInput {
 public:
  LineInput();
  bool terminal() const { return terminal_; }
  // Returns a line without its newline; nullopt at the end of input. kIo: standard input cannot be read. kCorrupt: a line is too long.
  Result<std::optional<std::string>> next();

 private:
  bool terminal_;
  std::unique_ptr<LineEditor> editor_;  // null: no line editing
};

}  // namespace sluice::apps
