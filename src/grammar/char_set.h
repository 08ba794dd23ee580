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

  void add(char32_t first, char32_t last);  // surrogates among them are left out
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet minus(const CharSet& other) const;
  bool contains(char32_t c) const;
  friend CharSet class_of_property(std::string_view name);
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }  // sorted, apart from each other

 private:
  void normalize();
  std::vector<Range> ranges_;
};

// Of a class such as \w there are two sets, because validators disagree (ECMAScript's is ASCII, Python's is Unicode): one that every
// validator takes as part of the class, and one that has everything that some validator takes as part of it.
enum class Bound : uint8_t {
  kInner,  // in the class for every validator
  kOuter,  // in the class for some validator
};
Bound opposite(Bound bound);

// The class of \d, \w, \s, \D, \W or \S. `letter` is one of these.
CharSet class_of_escape(char letter, Bound bound);
// What '.' matches.
CharSet class_of_dot(Bound bound);
// A general category or one of its first letters, for example "L", "Lu", "Nd"; empty if the name is not known.
CharSet class_of_property(std::string_view name);

}  // namespace sluice
