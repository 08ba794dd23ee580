// The regular expression that splits text into pieces. Byte pair encoding merges only inside a piece.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// GPT-2's pattern, which ByteLevel uses if use_regex is true. Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs.
extern const std::string_view kGpt2Pattern;

// Splits with PCRE2 as Hugging Face tokenizers 0.23 do with Oniguruma. Accepts only what both engines read alike: ASCII, with other characters
// and line ends only in classes, no nested classes, \r \n \t \f \s \S \d \D, escaped punctuation, \p and \P of general categories, quantifiers,
// (?:) (?=) (?!) (?<=) (?<!), and (?i:) around words. Unicode versions: text/tokenizer/unicode_stand_in.h. Immutable and thread-safe.
class SplitPattern {
 public:
  // The messages of kUnsupported and kCorrupt name `where` (a file and a key), the position in the pattern, and the text there.
  static Result<SplitPattern> compile(std::string_view pattern, const std::string& where);

  // Splits each piece of `text` further, as if the piece were a text of its own. `ends` has the ends of the pieces in bytes, in ascending
  // order up to text.size(). The new pieces are the matches and the gaps between them; no piece is empty. Each run of invalid UTF-8 is a
  // piece of its own, and no match crosses it. kUnsupported: the pattern took more than 2^16 + 16 * bytes steps for one match, or more than
  // 2^20 + 64 * bytes for all matches. PCRE2's steps do not include the characters of a run, so an adversarial pattern can still take
  // quadratic time, and callers must limit the text. kOutOfMemory: PCRE2 ran out of memory.
  Status cut(std::string_view text, std::vector<int64_t>* ends) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace sluice
