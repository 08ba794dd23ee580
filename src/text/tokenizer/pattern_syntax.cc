#include "text/tokenizer/pattern_syntax.h"

#include <cstdint>
#include <optional>

#include "base/utf8.h"
#include "text/tokenizer/unicode_stand_in.h"

namespace sluice {
namespace {

bool one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads a pattern from left to right and stops at the first construct that PCRE2 and Oniguruma read differently.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : all_(pattern) {}

  std::string difference() {
    while (trouble_.empty() && at_ < all_.size()) outside();
    return trouble_;
  }

 private:
  bool next_is(std::string_view word) const { return all_.substr(at_).substr(0, word.size()) == word; }
  char ahead(size_t n) const { return at_ + n < all_.size() ? all_[at_ + n] : '\0'; }

  void refuse(size_t bytes, std::string_view why) {
    const char c = all_[at_];
    const std::string found =
        c < 0x20 || c > 0x7e ? "a byte" : "'" + std::string(all_.substr(at_, bytes)) + "'";
    trouble_ = found + " at byte " + std::to_string(at_) + " (" + std::string(why) + ")";
  }

  void outside() {
    const char c = all_[at_];
    if (c < 0x20 || c > 0x7e) return refuse(1, "not printable ASCII");
    if (c == '\\') return escape();
    if (c == '[') return char_class();
    if (c == '(') return group();
    if (c == '{' || c == '}') return counted();
    if (c == '^' || c == '$') return refuse(1, "engines differ on whether it matches at line ends");
    ++at_;
  }

  void escape() {
    const char c = ahead(1);
    if (c == 'p' || c == 'P') return category();
    if (c == '\0' || c < 0x20 || c > 0x7e) return refuse(1, "nothing to escape");
    if ((is_letter(c) || is_digit(c)) && !one_of(c, "rntfsSdD"))
      return refuse(2, "an escape that engines read differently");
    at_ += 2;
  }

  void category() {
    const size_t close = ahead(4) == '}' ? 4 : 5;
    const bool short_name =
        ahead(2) == '{' && one_of(ahead(3), "LMNPSZC") && ahead(3) != '\0' && ahead(close) == '}';
    if (!short_name || (close == 5 && !is_letter(ahead(4))))
      return refuse(2, "wanted a general category in braces, for example \\p{Lu}");
    at_ += close + 1;
  }

  void char_class() {
    ++at_;
    if (ahead(0) == '^') ++at_;
    if (ahead(0) == ']') return refuse(1, "an empty class, or one that begins with ']'");
    while (trouble_.empty()) {
      if (at_ >= all_.size()) {
        at_ = all_.size() - 1;
        return refuse(1, "an unclosed class");
      }
      const char c = all_[at_];
      if (c == ']') break;
      if (static_cast<unsigned char>(c) >= 0x80 || c == '\r' || c == '\n') {
        literals();
        continue;
      }
      if (c < 0x20 || c > 0x7e) return refuse(1, "not printable ASCII");
      if (c == '[') return refuse(1, "a class inside a class");
      if (next_is("&&")) return refuse(2, "an intersection of classes");
      if (c == '\\')
        escape();
      else
        ++at_;
    }
    if (trouble_.empty()) ++at_;
  }

  // Reads in a class: a line end, a character beyond ASCII, or a range of such characters. Rejects characters that have a stand-in or are one
  // (unicode_stand_in.h), because the text to match contains the stand-ins.
  void literals() {
    const std::optional<char32_t> first = literal(at_);
    if (!first) return refuse(1, "invalid UTF-8");
    if (all_[at_ - 1] == '-' && all_[at_ - 2] != '\\')
      return refuse(1, "a range whose ends are not ascending characters beyond ASCII");
    size_t end = at_ + utf8_bytes(at_);
    char32_t last = *first;
    const bool is_range = end + 1 < all_.size() && all_[end] == '-' && all_[end + 1] != ']';
    if (is_range) {
      const std::optional<char32_t> to = literal(end + 1);
      if (!to || *to < *first || *first < 0x80 || *to < 0x80)
        return refuse(1, "a range whose ends are not ascending characters beyond ASCII");
      last = *to;
      end += 1 + utf8_bytes(end + 1);
    }
    if (has_stand_in(*first, last)) return refuse(1, "characters that differ between versions of Unicode");
    at_ = end;
  }
  std::optional<char32_t> literal(size_t at) const {
    const Utf8Step step = utf8_step(all_.substr(at));
    if (!step.valid) return {};
    return step.code_point;
  }
  size_t utf8_bytes(size_t at) const { return static_cast<size_t>(utf8_step(all_.substr(at)).bytes); }

  void group() {
    if (next_is("(*")) return refuse(2, "a verb");
    if (!next_is("(?")) {
      ++at_;
      return;
    }
    if (next_is("(?i:")) return caseless();
    for (const std::string_view kind : {"(?:", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (!next_is(kind)) continue;
      at_ += kind.size();
      return;
    }
    refuse(3, "a kind of group that engines read differently");
  }

  // Reads (?i:...) around words. Rejects everything else there, and words with a pair of letters that one of the engines also matches with a
  // single character (ss with U+00DF).
  void caseless() {
    at_ += 4;
    for (; at_ < all_.size() && all_[at_] != ')'; ++at_) {
      const char c = all_[at_];
      if (!is_letter(c) && c != '\'' && c != '|') return refuse(1, "only words, ' and | within (?i:)");
      const std::string pair = {static_cast<char>(c | 0x20), static_cast<char>(ahead(1) | 0x20)};
      for (const std::string_view ligature : {"ss", "ff", "fi", "fl", "st"})
        if (pair == ligature) return refuse(2, "within (?i:) some engines match one character for both");
    }
  }

  // Reads {n}, {n,} and {n,m}. The engines differ in how they read other braces, and quantifiers after braces.
  void counted() {
    size_t end = 1;
    while (is_digit(ahead(end))) ++end;
    const bool has_min = end > 1;
    if (ahead(end) == ',') ++end;
    while (is_digit(ahead(end))) ++end;
    if (all_[at_] == '}' || !has_min || ahead(end) != '}')
      return refuse(1, "a brace that is not {n}, {n,} or {n,m}");
    if (one_of(ahead(end + 1), "+?*{") && ahead(end + 1) != '\0')
      return refuse(end + 2, "a quantifier of a quantifier");
    at_ += end + 1;
  }

  std::string_view all_;
  size_t at_ = 0;
  std::string trouble_;
};

}  // namespace

std::string pattern_difference(std::string_view pattern) { return PatternReader(pattern).difference(); }

}  // namespace sluice
