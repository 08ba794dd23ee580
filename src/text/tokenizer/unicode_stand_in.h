// Code points whose properties differ between PCRE2 and Oniguruma, the engine of Hugging Face tokenizers.
#pragma once

namespace sluice {

// Returns `code_point` if PCRE2 10.42 (Unicode 14) gives it the general category of Unicode 16. Otherwise returns a code point of the
// same UTF-8 length to which PCRE2 gives that category. Replacing each code point of a text by its stand-in makes PCRE2 split the text
// where Hugging Face tokenizers 0.23 splits it.
char32_t unicode_stand_in(char32_t code_point);
// Whether some code point from `first` to `last` has a stand-in, or is the stand-in of another.
bool has_stand_in(char32_t first, char32_t last);

}  // namespace sluice
