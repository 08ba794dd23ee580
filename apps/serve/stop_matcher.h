// Text that comes in pieces, up to the first of some strings.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::apps {

// What push() and flush() returned, joined, is the text before the string that begins first, wherever the text was cut into pieces.
// What may be the beginning of one is held back.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}  // none is empty
  std::string push(std::string_view text);
  std::string flush();  // the text has ended
  // The string that ended it: of two that begin at one place the shorter one.
  const std::optional<std::string>& found() const { return found_; }

 private:
  std::string take(size_t bytes, const std::string* stop);
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> found_;
};

}  // namespace sluice::apps
