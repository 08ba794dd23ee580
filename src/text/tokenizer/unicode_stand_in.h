// Where PCRE2 and the engine that tokenizers were trained with disagree about a code point.
#pragma once

namespace sluice {

// A code point with the same UTF-8 length and the same general category as `code_point` has in Unicode 16, which PCRE2
// 10.42 (Unicode 14) also gives that category; `code_point` itself where the two agree. Matching a text in which each
// code point is replaced by its stand-in cuts it where Hugging Face tokenizers 0.23 cuts it.
char32_t unicode_stand_in(char32_t code_point);

}  // namespace sluice
