// Unicode's normalization form C, which some tokenizers were trained on.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The normalized text; none: it is normalized as it is. As Hugging Face tokenizers 0.23 has it (its version of Unicode). Bytes that are not
// UTF-8 stay as they are, and nothing is composed or ordered across them.
std::optional<std::string> nfc(std::string_view text);

}  // namespace sluice
