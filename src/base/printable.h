// Text for human readers: untrusted text without terminal commands, and numbers.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Lines : uint8_t {
  kOne,   // escapes every control character: for errors and names
  kMany,  // keeps newlines and tabs: for a model's output
};

// Replaces the control characters of `text` (U+0000 to U+001F, U+007F to U+009F) by "\n", "\t", "\r" or
// "\x1b". All other bytes stay unchanged, even if they are not valid UTF-8.
std::string printable(std::string_view text, Lines lines = Lines::kOne);

// Returns `text`, or if it is longer than `bytes`, as much of it as fits, followed by "...": for untrusted
// names in errors and logs. UTF-8 is cut between characters.
std::string shortened(std::string_view text, size_t bytes = 80);

// The shortest text that parses to exactly this number: "1e-12".
std::string number_text(double value);
// The shortest text in scientific form that parses to exactly this number: 18446744073709552000 is "1.8446744073709552e+19".
std::string scientific_text(double value);

}  // namespace sluice
