// Untrusted UTF-8: validation, and conversion of bytes to valid text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// The code point at the front of `text`, or the number of invalid bytes there.
struct Utf8Step {
  char32_t code_point = 0;
  int64_t bytes = 0;  // bytes of the code point; if invalid, the bytes that one U+FFFD replaces
  bool valid = false;
  bool truncated = false;  // not valid so far: the text ends inside a code point
};

// `text` must not be empty. Overlong forms, surrogates and values above U+10FFFF are invalid. An invalid
// step covers the longest prefix of a code point found, at least one byte, as the Unicode Standard
// recommends in section 3.9 and Python's errors="replace" does.
Utf8Step utf8_step(std::string_view text);

void append_utf8(char32_t code_point, std::string* out);

// Makes valid UTF-8 from bytes that arrive in pieces: a code point that is split between pieces is held back until it
// is complete, and invalid bytes become U+FFFD. The concatenated results do not depend on how the input was split.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // returns held bytes as U+FFFD; the stream can be reused
  // Whether held bytes would become U+FFFD if these bytes came next.
  bool is_cut_by(std::string_view bytes) const;

 private:
  std::string held_;  // at most 3 bytes
};

// Number of bytes before the first invalid byte; all of them if the text is valid.
size_t valid_utf8_bytes(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_bytes(text) == text.size(); }
// Like Utf8Stream, for bytes in one piece.
std::string valid_utf8(std::string_view bytes);

}  // namespace sluice
