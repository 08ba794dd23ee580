#include "apps/run/line_input.h"

#include <unistd.h>

#include <cstdio>

#include "apps/common/input_file.h"

namespace sluice::apps {
namespace {

constexpr const char* kPrompt = "> ";

}  // namespace

LineInput::LineInput() : terminal_(isatty(STDIN_FILENO)) {
  if (terminal_ && isatty(STDERR_FILENO)) editor_ = LineEditor::open(kPrompt);
}

Result<std::optional<std::string>> LineInput::next() {
  if (editor_) return editor_->next();
  if (terminal_) std::fputs(kPrompt, stderr);
  return next_line(stdin, kStandardInput);
}

}  // namespace sluice::apps
