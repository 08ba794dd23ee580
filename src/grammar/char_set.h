// Sets of Unicode scalar values, as sorted ranges.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

class CharSet {
 public:
  struct Range {
    char32_t first, last;
    bool operator==(const Range&) const = default;
  };

  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges);
  static CharSet all();  // U+0000 to U+10FFFF without surrogates

  void add(char32_t first, char32_t last);  // leaves out surrogates
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet minus(const CharSet& other) const;
  bool contains(char32_t c) const;
  friend CharSet class_of_property(std::string_view name);
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }  // sorted and disjoint

 private:
  void normalize();
  std::vector<Range> ranges_;
};

// Validators disagree about classes such as \w: ECMAScript's is ASCII, Python's is Unicode. So each class has two sets.
enum class Bound : uint8_t {
  kInner,  // characters that every validator puts in the class
  kOuter,  // characters that some validator puts in the class
};
Bound opposite(Bound bound);

// The class of the escape '\' + `letter`, where `letter` is d, w, s, D, W or S.
CharSet class_of_escape(char letter, Bound bound);
// The characters that '.' matches.
CharSet class_of_dot(Bound bound);
// The characters of a general category, such as "Lu", of a category group, such as "L", of a script, as "sc:Greek" or with extensions as
// "scx:Greek", or with a binary property of ECMAScript, such as "Emoji". Empty for unknown names.
CharSet class_of_property(std::string_view name);

}  // namespace sluice
