// Text that comes in pieces, up to the first of some strings.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Strings that end a text. Immutable and cheap to copy: all answers to a request share them.
class StopStrings {
 public:
  StopStrings() = default;
  StopStrings(std::vector<std::string> strings);  // none is empty
  StopStrings(std::initializer_list<std::string> strings) : StopStrings(std::vector<std::string>(strings)) {}
  bool empty() const { return !shared_; }
  size_t size() const { return shared_ ? shared_->strings.size() : 0; }
  const std::string& operator[](size_t i) const { return shared_->strings[i]; }
  // A text ends with the first `matched` bytes of string i, and with no longer beginning of it. How many it ends with once `byte`
  // follows: constant time a byte over a whole text.
  uint32_t next(size_t i, uint32_t matched, char byte) const;

 private:
  struct Shared {
    std::vector<std::string> strings;
    // [i][n]: bytes of the longest beginning of string i, but for the whole, with which its first n + 1 bytes end.
    std::vector<std::vector<uint32_t>> shorter;
  };
  std::shared_ptr<const Shared> shared_;
};

// What push() and flush() returned, joined, is the text before the string that begins first, wherever the text was cut into pieces.
// What may be the beginning of one is held back.
class StopMatcher {
 public:
  explicit StopMatcher(StopStrings stops);
  std::string push(std::string_view text);
  std::string flush();  // the text has ended
  // The string that ended it: of two that begin at one place the shorter one.
  const std::optional<std::string>& found() const { return found_; }

 private:
  void look_at(char byte);
  std::string take(size_t bytes);
  std::string end_at_first();

  StopStrings stops_;
  std::vector<uint32_t> matched_;  // of each, at the end of the text so far
  uint64_t bytes_ = 0;             // of the text so far
  uint64_t held_from_ = 0;         // where `held_` stands in it
  std::string held_;
  struct Whole {
    uint64_t begin = 0;
    size_t stop = 0;
  };
  std::optional<Whole> first_;  // of those that are whole
  std::optional<std::string> found_;
};

}  // namespace sluice
