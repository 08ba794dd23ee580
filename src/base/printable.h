// Text as people read it: what comes from outside without what a terminal would obey, and numbers.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Lines : uint8_t {
  kOne,   // every control character is escaped: an error, a name
  kMany,  // newlines and tabs stay: what a model says
};

// `text` with its control characters (U+0000 to U+001F, U+007F to U+009F) as "\n", "\t", "\r" or "\x1b". Other bytes stay as
// they are, valid UTF-8 or not.
std::string printable(std::string_view text, Lines lines = Lines::kOne);

// `text`, of which as much as fits into `bytes` stands before "..." where it is longer: foreign names in errors and logs. UTF-8 is cut
// between characters.
std::string shortened(std::string_view text, size_t bytes = 80);

// The shortest text that reads back as this number: "1e-12".
std::string number_text(double value);
// The fewest digits that read back as it, and an exponent: 18446744073709552000 is "1.8446744073709552e+19".
std::string scientific_text(double value);

}  // namespace sluice
