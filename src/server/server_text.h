// Small things that a server does with text.
#pragma once
#include <string>
#include <string_view>

namespace sluice {

// Takes the same time wherever two texts of one length differ.
bool same_secret(std::string_view wanted, std::string_view found);
std::string lower(std::string text);
// "a/b" of "a%2Fb". What is no such pair of digits stays.
std::string percent_decoded(std::string_view text);
// What follows `before` in a path, decoded.
std::string name_in(const std::string& path, std::string_view before);
// Whether "GET, DELETE" has a word.
bool lists(std::string_view words, std::string_view word);
// 32 hexadecimal digits that nobody guesses.
std::string random_name();

}  // namespace sluice
