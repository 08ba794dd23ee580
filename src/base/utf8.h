// UTF-8 from outside: what is valid, and how bytes become text that is.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// One code point at the front of `text`, or how many bytes there cannot be part of one.
struct Utf8Step {
  char32_t code_point = 0;
  int64_t bytes = 0;  // of the code point; or, when it is not valid, of the bytes that one U+FFFD stands for
  bool valid = false;
  bool truncated = false;  // not valid yet: a prefix of a code point, and the text ends there
};

// `text` is not empty. Overlong forms, surrogates and values above U+10FFFF are not valid. An invalid step is as long as
// the longest prefix of a code point found, at least one byte: the practice of the Unicode Standard, section 3.9, which is
// what Python's errors="replace" does.
Utf8Step utf8_step(std::string_view text);

void append_utf8(char32_t code_point, std::string* out);

// Makes valid UTF-8 of bytes that come in pieces: a code point cut between two pieces is held back until it is whole, and
// invalid bytes become U+FFFD. What push() and finish() returned, joined, does not depend on where the pieces were cut.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // what was held back, as U+FFFD; the stream can be used again

 private:
  std::string held_;  // at most 3 bytes
};

// How many bytes stand before the first that is not part of a code point; all of them in valid UTF-8.
size_t valid_utf8_bytes(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_bytes(text) == text.size(); }
// As Utf8Stream, for bytes in one piece.
std::string valid_utf8(std::string_view bytes);

}  // namespace sluice
