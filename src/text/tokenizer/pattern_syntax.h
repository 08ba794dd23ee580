// Finds patterns that PCRE2 and Oniguruma read differently.
#pragma once
#include <string>
#include <string_view>

namespace sluice {

// Empty if the two engines read `pattern` alike. Otherwise names the first construct that they read differently: "'^' at byte 3 (...)". A
// pattern that passes may still have a syntax error, which PCRE2 reports.
std::string pattern_difference(std::string_view pattern);

}  // namespace sluice
