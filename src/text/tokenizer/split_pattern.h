// The regular expression that cuts text into the pieces within which byte pairs merge.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// GPT-2's, which ByteLevel{use_regex: true} means. Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs.
extern const std::string_view kGpt2Pattern;

// A pattern on PCRE2 that cuts as Hugging Face tokenizers 0.23 does with Oniguruma. So that the two engines cannot mean
// different things, only the part of the syntax is accepted that they share: ASCII; classes without sets inside; the escapes
// \r \n \t \f \s \S \d \D and those of punctuation; \p and \P with general categories; the groups (?:) (?=) (?!) (?<=)
// (?<!), and (?i:) around plain words; quantifiers. Unicode versions: text/tokenizer/unicode_stand_in.h. Immutable, so any number of threads may use it.
class SplitPattern {
 public:
  // kUnsupported or kCorrupt names `where` (a file and a key), the place in the pattern and what stands there.
  static Result<SplitPattern> compile(std::string_view pattern, const std::string& where);

  // Cuts each piece of `text` further, as if it were a text of its own. `ends` holds where the pieces end, in bytes, in
  // ascending order, the last at text.size(). The new pieces are the matches and what is between them; none is empty.
  // Bytes that are not UTF-8 are pieces of their own: each run of them cuts the text, and nothing matches across it.
  // kUnsupported: a hostile pattern took more steps than 2^16 + 16 per byte for one match, or 2^20 + 64 per byte for all of
  // them. PCRE2 counts no step for each character of a run, so a hostile pattern that matches nothing can still take time
  // quadratic in the text: callers bound the text. kOutOfMemory.
  Status cut(std::string_view text, std::vector<int64_t>* ends) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace sluice
