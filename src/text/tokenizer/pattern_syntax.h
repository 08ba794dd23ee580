// Finds patterns that PCRE2 and Oniguruma read differently.
#pragma once
#include <string>
#include <string_view>

namespace sluice {

// Empty if both engines read `pattern` alike. Otherwise describes the difference and its place: "'^' at byte 3 (...)". A pattern that
// passes may still have a syntax error, which PCRE2 reports.
std::string pattern_difference(std::string_view pattern);

}  // namespace sluice
