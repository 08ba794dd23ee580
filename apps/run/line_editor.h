// Line editing on a terminal, by libedit.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace sluice::apps {

class LineEditor {
 public:
  // Null: this build lacks libedit, or the process has no descriptors left.
  static std::unique_ptr<LineEditor> open(const char* prompt);
  virtual ~LineEditor() = default;
  virtual std::optional<std::string> next() = 0;  // a line without its newline; nullopt at the end of input
};

}  // namespace sluice::apps
