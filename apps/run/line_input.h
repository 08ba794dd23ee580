// Lines that somebody types, or that a script brings.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "apps/run/line_editor.h"
#include "base/status.h"

namespace sluice::apps {

// On a terminal a prompt, editing and the history of this run; ~/.editrc may set keys. From anywhere else the lines as they come.
class LineInput {
 public:
  LineInput();
  bool terminal() const { return terminal_; }
  // Without its newline; none: there are no more. kIo, kCorrupt: standard input cannot be read, or has a line without an end.
  Result<std::optional<std::string>> next();

 private:
  bool terminal_;
  std::unique_ptr<LineEditor> editor_;  // null: nothing to edit with
};

}  // namespace sluice::apps
