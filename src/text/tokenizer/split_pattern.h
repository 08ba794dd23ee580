// The regular expression that splits text into pieces. Byte pairs merge only inside a piece.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice {

// GPT-2's pattern, which ByteLevel{use_regex: true} stands for. Source: huggingface/tokenizers, pre_tokenizers/byte_level.rs.
extern const std::string_view kGpt2Pattern;

// A pattern that runs on PCRE2 and splits as Hugging Face tokenizers 0.23 does with Oniguruma. Accepts only syntax that both engines read alike: ASCII; classes without nested sets,
// which may name other characters and line ends; the escapes \r \n \t \f \s \S \d \D and escaped punctuation; \p and \P with general categories; the groups (?:) (?=) (?!) (?<=)
// (?<!), and (?i:) around plain words; quantifiers. Differences of Unicode versions: text/tokenizer/unicode_stand_in.h. Immutable and thread-safe.
class SplitPattern {
 public:
  // kUnsupported or kCorrupt names `where` (a file and a key), the position in the pattern and the text there.
  static Result<SplitPattern> compile(std::string_view pattern, const std::string& where);

  // Splits each piece of `text` further, as if it were a separate text. `ends` holds the ends of the pieces in bytes, ascending, the
  // last one at text.size(). The new pieces are the matches and the gaps between them; none is empty. Each run of invalid UTF-8 is a
  // piece of its own, and no match crosses it. kUnsupported: a hostile pattern took more steps than 2^16 + 16 per byte for one match, or
  // than 2^20 + 64 per byte for all matches. PCRE2 counts no step per character of a run, so a hostile pattern without matches can still
  // take quadratic time; callers must limit the text. kOutOfMemory: PCRE2 found no memory.
  Status cut(std::string_view text, std::vector<int64_t>* ends) const;

 private:
  struct Compiled;
  explicit SplitPattern(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace sluice
