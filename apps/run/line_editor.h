// Lines edited on a terminal, by libedit.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace sluice::apps {

class LineEditor {
 public:
  // Null: this build has no libedit, or the process no descriptors left.
  static std::unique_ptr<LineEditor> open(const char* prompt);
  virtual ~LineEditor() = default;
  virtual std::optional<std::string> next() = 0;  // without its newline; none: there are no more
};

}  // namespace sluice::apps
