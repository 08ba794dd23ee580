// Text helpers of the server.
#pragma once
#include <string>
#include <string_view>

namespace sluice {

// Whether the texts are equal. For texts of equal length, the time does not depend on their contents.
bool same_secret(std::string_view wanted, std::string_view found);
std::string lower(std::string text);
// Decodes "a%2Fb" to "a/b". Invalid escapes stay as they are.
std::string percent_decoded(std::string_view text);
// Returns the part of a path after the prefix `before`, percent-decoded.
std::string name_in(const std::string& path, std::string_view before);
// Whether a list such as "GET, DELETE" contains the word.
bool lists(std::string_view words, std::string_view word);
// 32 random hexadecimal digits that cannot be guessed.
std::string random_name();

}  // namespace sluice
