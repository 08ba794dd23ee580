// Unicode normalization form C, which some tokenizers require.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Returns the normalized text; nullopt: `text` is already normalized. Uses the Unicode version of Hugging Face tokenizers 0.23. Invalid UTF-8
// stays as it is, and no characters are composed or reordered across it.
std::optional<std::string> nfc(std::string_view text);

}  // namespace sluice
