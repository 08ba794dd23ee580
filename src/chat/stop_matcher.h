// Cuts streamed text at the first stop string.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The stop strings of a request. Immutable and cheap to copy; all choices of the request share them.
class StopStrings {
 public:
  StopStrings() = default;
  StopStrings(std::vector<std::string> strings);  // each must be non-empty
  StopStrings(std::initializer_list<std::string> strings) : StopStrings(std::vector<std::string>(strings)) {}
  bool empty() const { return !shared_; }
  size_t size() const { return shared_ ? shared_->strings.size() : 0; }
  const std::string& operator[](size_t i) const { return shared_->strings[i]; }
  // `matched` is the length of the longest prefix of string i with which the text so far ends. Returns this length for the text with `byte`
  // appended. Takes amortized constant time per byte.
  uint32_t next(size_t i, uint32_t matched, char byte) const;

 private:
  struct Shared {
    std::vector<std::string> strings;
    // [i][n]: length of the longest proper prefix of string i that is a suffix of its first n + 1 bytes.
    std::vector<std::vector<uint32_t>> shorter;
  };
  std::shared_ptr<const Shared> shared_;
};

// The concatenated results of push() and flush() are the text before the first stop string, no matter how the text is split into pieces.
// push() holds back text that may be the beginning of a stop string.
class StopMatcher {
 public:
  explicit StopMatcher(StopStrings stops);
  std::string push(std::string_view text);
  std::string flush();  // call at the end of the text
  // The stop string that ended the text. If two stop strings begin at the same place, it is the shorter one.
  const std::optional<std::string>& found() const { return found_; }

 private:
  void look_at(char byte);
  std::string take(size_t bytes);
  std::string end_at_first();

  StopStrings stops_;
  std::vector<uint32_t> matched_;  // by string: length of its longest prefix with which the text so far ends
  uint64_t bytes_ = 0;             // length of the text so far
  uint64_t held_from_ = 0;         // position of `held_` in the text
  std::string held_;
  struct Whole {
    uint64_t begin = 0;
    size_t stop = 0;
  };
  // of the complete stop strings found so far, the one with the earliest beginning
  std::optional<Whole> first_;
  std::optional<std::string> found_;
};

}  // namespace sluice
