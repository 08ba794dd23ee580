// Which patterns mean the same to PCRE2 and to Oniguruma.
#pragma once
#include <string>
#include <string_view>

namespace sluice {

// Empty if both engines read `pattern` alike; otherwise what stands in the way, with its place: "'^' at byte 3 (...)".
// A pattern that passes may still have a mistake in it that PCRE2 finds.
std::string pattern_difference(std::string_view pattern);

}  // namespace sluice
