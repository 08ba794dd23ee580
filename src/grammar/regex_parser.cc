#include "grammar/regex_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {
namespace {

using Node = Regex::Node;
using Pointer = Node::Pointer;

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_hex(char32_t c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// A character class: its inner and its outer set (Bound).
struct Class {
  CharSet sets[2];
  static Class of(char32_t c) {
    Class out;
    for (CharSet& set : out.sets) set.add(c, c);
    return out;
  }
  void add(const Class& other) {
    for (size_t i = 0; i < 2; ++i) sets[i].add(other.sets[i]);
  }
  Class complement() const { return {{sets[1].complement(), sets[0].complement()}}; }
};

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) {
    for (size_t at = 0; at < pattern.size();) {
      const Utf8Step step = utf8_step(pattern.substr(at));
      text_.push_back(step.valid ? step.code_point : U'\ufffd');
      at += static_cast<size_t>(step.bytes);
    }
  }

  Result<Pointer> all() {
    auto out = choice(0);
    if (error_.empty() && at_ < text_.size()) fail("an unmatched ')'");
    if (!error_.empty()) return invalid(error_);
    return out;
  }

 private:
  char32_t ahead(size_t n = 0) const { return at_ + n < text_.size() ? text_[at_ + n] : U'\0'; }
  bool has(size_t n = 0) const { return at_ + n < text_.size(); }
  bool next_is(std::string_view word) const {
    for (size_t i = 0; i < word.size(); ++i)
      if (!has(i) || ahead(i) != static_cast<unsigned char>(word[i])) return false;
    return true;
  }
  void fail(std::string_view found) {
    if (error_.empty()) error_ = std::string(found) + " at character " + std::to_string(at_);
  }

  // Moves past the next `end`; if there is none, fails with the message `otherwise`.
  void skip_to(char32_t end, std::string_view otherwise) {
    const size_t found = text_.find(end, at_);
    if (found == std::u32string::npos) return fail(otherwise);
    at_ = found + 1;
  }

  Pointer choice(int depth) {
    if (depth > kGroupDepthMax) {
      fail("more than " + std::to_string(kGroupDepthMax) + " levels of groups");
      return shared({});
    }
    Node out{.kind = Node::Kind::kChoice};
    out.parts.push_back(sequence(depth));
    while (error_.empty() && has() && ahead() == '|') {
      ++at_;
      out.parts.push_back(sequence(depth));
    }
    return out.parts.size() == 1 ? out.parts.front() : shared(std::move(out));
  }

  Pointer sequence(int depth) {
    Node out;
    while (error_.empty() && has() && ahead() != '|' && ahead() != ')')
      if (Pointer part = repeated(depth)) out.parts.push_back(std::move(part));
    return shared(std::move(out));
  }

  Pointer repeated(int depth) {
    Pointer part = atom(depth);
    bool counted = false;
    while (error_.empty() && has()) {
      int64_t least = 0, most = -1;
      const size_t start = at_;
      if (!count(&least, &most)) break;
      const bool fixed = part->kind == Node::Kind::kBegin || part->kind == Node::Kind::kEnd ||
                         part->kind == Node::Kind::kLookAhead;
      if (counted || fixed) {
        at_ = start;
        fail(counted ? "a repetition of a repetition" : "a repetition of an assertion");
        break;
      }
      counted = true;
      if (has() && ahead() == '?') ++at_;  // lazy: matches the same texts
      if (has() && ahead() == '+') fail("a possessive repetition");
      part = shared({.kind = Node::Kind::kRepeat, .parts = {std::move(part)}, .least = least, .most = most});
    }
    return part;
  }

  // Reads *, +, ?, {n}, {n,} or {n,m}.
  bool count(int64_t* least, int64_t* most) {
    const char32_t c = ahead();
    if (c == '*' || c == '+' || c == '?') {
      *least = c == '+' ? 1 : 0;
      *most = c == '?' ? 1 : -1;
      ++at_;
      return true;
    }
    if (c != '{') return false;
    size_t end = 1;
    const auto number = [&]() -> std::optional<int64_t> {
      if (!is_digit(ahead(end))) return {};
      int64_t n = 0;
      for (; is_digit(ahead(end)); ++end)
        n = std::min(kRepeatCountMax, 10 * n + static_cast<int64_t>(ahead(end) - '0'));
      return n;
    };
    const auto first = number();
    if (!first && ahead(end) == ',' && is_digit(ahead(end + 1))) {
      fail("'{,', which is read differently by different validators");
      return false;
    }
    if (!first) return false;
    *least = *most = *first;
    if (ahead(end) == ',') {
      ++end;
      const auto second = number();
      *most = second ? *second : -1;
    }
    if (ahead(end) != '}') return false;  // then '{' is an ordinary character
    at_ += end + 1;
    if (*most >= 0 && *most < *least) fail("a repetition whose bounds are in the wrong order");
    return true;
  }

  Pointer atom(int depth) {
    const char32_t c = ahead();
    if (c == '(') return group(depth);
    if (c == '[') return chars(char_class());
    if (c == '\\') return escape_atom();
    int64_t least = 0, most = 0;
    if (count(&least, &most)) {
      fail("a repetition of nothing");
      return shared({});
    }
    ++at_;
    if (c == '^') return shared({.kind = Node::Kind::kBegin});
    if (c == '$') return shared({.kind = Node::Kind::kEnd});
    if (c == '.') return chars({{class_of_dot(Bound::kInner), class_of_dot(Bound::kOuter)}});
    return chars(Class::of(c));
  }

  static Pointer chars(Class c) {
    Node out{.kind = Node::Kind::kChars};
    out.chars[0] = std::move(c.sets[0]);
    out.chars[1] = std::move(c.sets[1]);
    return shared(std::move(out));
  }

  Pointer group(int depth) {
    const size_t start = at_;
    Node look{.kind = Node::Kind::kLookAhead};
    bool is_look = false;
    if (next_is("(?:")) {
      at_ += 3;
    } else if (next_is("(?=") || next_is("(?!")) {
      is_look = true;
      look.negative = ahead(2) == '!';
      at_ += 3;
    } else if (next_is("(?<=") || next_is("(?<!")) {
      fail("a look-behind, which is not supported,");
    } else if (next_is("(?<") || next_is("(?P<")) {
      skip_to('>', "a '(?<' without its '>'");
    } else if (next_is("(?")) {
      const bool sets_flags = ahead(2) == '-' || (is_letter(ahead(2)) && ahead(2) != 'P');
      fail(sets_flags ? "flags, such as (?i), which are not supported,"
                      : "a kind of group that is not supported,");
    } else {
      ++at_;
    }
    Pointer inside = choice(depth + 1);
    if (error_.empty() && (!has() || ahead() != ')')) {
      at_ = start;
      fail("a '(' without its ')'");
    }
    ++at_;
    if (!is_look) return inside;
    look.parts.push_back(std::move(inside));
    return shared(std::move(look));
  }

  Pointer escape_atom() {
    const char32_t c = ahead(1);
    if (c == 'b' || c == 'B') {
      fail("a word boundary, which is not supported,");
      return shared({});
    }
    if (c == 'k' || (c >= '1' && c <= '9')) {
      fail("a back reference, which is not supported,");
      return shared({});
    }
    return chars(escape());
  }

  // Reads an escape, outside of and inside classes.
  Class escape() {
    ++at_;
    if (!has()) {
      fail("a backslash at the end");
      return {};
    }
    const char32_t c = text_[at_++];
    if (std::u32string_view(U"dwsDWS").find(c) != std::u32string_view::npos)
      return {{class_of_escape(static_cast<char>(c), Bound::kInner),
               class_of_escape(static_cast<char>(c), Bound::kOuter)}};
    if (c == 'p' || c == 'P') return property(c == 'P');
    return Class::of(escaped_char(c));
  }

  Class property(bool negative) {
    std::string name;
    if (has() && ahead() == '{') {
      const size_t start = ++at_;
      skip_to('}', "a '\\p{' without its '}'");
      for (size_t i = start; i + 1 < at_; ++i) name += text_[i] < 0x80 ? static_cast<char>(text_[i]) : '?';
    }
    for (const std::string_view prefix : {"gc=", "General_Category="})
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    static constexpr std::pair<std::string_view, std::string_view> kScripts[] = {
        {"Script=", "sc:"}, {"sc=", "sc:"}, {"Script_Extensions=", "scx:"}, {"scx=", "scx:"}};
    for (const auto& [prefix, shorter] : kScripts)
      if (name.starts_with(prefix)) name.replace(0, prefix.size(), shorter);
    static constexpr std::pair<std::string_view, std::string_view> kLong[] = {
        {"Letter", "L"}, {"Uppercase_Letter", "Lu"}, {"Lowercase_Letter", "Ll"},
        {"Number", "N"}, {"Decimal_Number", "Nd"},   {"Punctuation", "P"},
        {"Symbol", "S"}, {"Separator", "Z"},         {"Mark", "M"}};
    for (const auto& [longer, shorter] : kLong)
      if (name == longer) name = shorter;
    const CharSet set = class_of_property(name);
    if (set.empty()) fail("a property of characters that is not known, '" + printable(name) + "',");
    const Class out{{set, set}};
    return negative ? out.complement() : out;
  }

  char32_t escaped_char(char32_t c) {
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case '0':
        if (is_digit(ahead())) fail("an octal escape, which is read differently by different validators,");
        return 0;
      case 'c':
        if (!is_letter(ahead())) return fail("'\\c' without a letter"), 0;
        return text_[at_++] % 32;
      case 'x':
        return hex(2);
      case 'u':
        return unicode();
      default:
        break;
    }
    if (is_letter(c) || is_digit(c))
      fail("an escape that is not known, '\\" + std::string(1, static_cast<char>(c)) + "',");
    return c;
  }

  char32_t hex(int digits) {
    char32_t out = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = ahead();
      if (!is_hex(c)) {
        fail("an escape with too few hexadecimal digits");
        return 0;
      }
      out = 16 * out + (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
      ++at_;
    }
    return out;
  }

  char32_t unicode() {
    if (ahead() == '{') {
      ++at_;
      char32_t out = 0;
      while (is_hex(ahead()) && out <= 0x10ffff) out = 16 * out + hex(1);
      if (ahead() != '}' || out > 0x10ffff) return fail("an escape that is no code point"), 0;
      ++at_;
      return out;
    }
    const char32_t high = hex(4);
    if (high < 0xd800 || high > 0xdbff || ahead() != '\\' || ahead(1) != 'u') return high;
    const size_t start = at_;
    at_ += 2;
    const char32_t low = hex(4);
    at_ = start;
    // A surrogate pair is one character in ECMAScript and two in Python.
    if (low >= 0xdc00 && low <= 0xdfff)
      fail("an escaped pair of surrogates, which is read differently by different validators,");
    return high;
  }

  Class char_class() {
    ++at_;
    const bool negative = has() && ahead() == '^';
    if (negative) ++at_;
    if (has() && ahead() == ']')
      fail("a class that begins with ']', which is read differently by different validators,");
    Class out;
    while (error_.empty()) {
      if (!has()) {
        fail("a '[' without its ']'");
        break;
      }
      if (ahead() == ']') break;
      // Some validators read these as POSIX classes or intersections, others as plain characters.
      const char32_t next = has(1) ? ahead(1) : 0;
      if (ahead() == '[' && (next == ':' || next == '.' || next == '=')) {
        fail(
            "'[:', '[.' or '[=' in a class, which is read differently by different "
            "validators,");
        break;
      }
      if (ahead() == '&' && next == '&') {
        fail("'&&' in a class, which is read differently by different validators,");
        break;
      }
      bool single = true;
      const Class from = member(&single);
      if (!error_.empty()) break;
      if (ahead() != '-' || !has(1) || ahead(1) == ']') {
        out.add(from);
        continue;
      }
      ++at_;
      bool single_end = true;
      const Class to = member(&single_end);
      if (!error_.empty()) break;
      if (!single || !single_end) {  // in [\w-.], the dash is a character
        out.add(from);
        out.add(Class::of('-'));
        out.add(to);
        continue;
      }
      const char32_t first = single_char_, last = last_single_;
      if (first > last) {
        fail("a range whose ends are in the wrong order");
        break;
      }
      for (CharSet& set : out.sets) set.add(first, last);
    }
    ++at_;
    return negative ? out.complement() : out;
  }

  // Reads one member of a class. Sets *single to false if the member is itself a class. Otherwise last_single_ has its character, and
  // single_char_ the character of the previous member.
  Class member(bool* single) {
    single_char_ = last_single_;
    if (ahead() != '\\') {
      last_single_ = text_[at_++];
      return Class::of(last_single_);
    }
    const char32_t c = ahead(1);
    if (c == 'b') {
      at_ += 2;
      last_single_ = '\b';
      return Class::of('\b');
    }
    if (std::u32string_view(U"dwsDWSpP").find(c) != std::u32string_view::npos && c != 0) {
      *single = false;
      return escape();
    }
    at_ += 2;
    last_single_ = at_ <= text_.size() ? escaped_char(c) : 0;
    if (at_ > text_.size()) fail("a backslash at the end");
    return Class::of(last_single_);
  }

  std::u32string text_;
  size_t at_ = 0;
  std::string error_;
  char32_t single_char_ = 0, last_single_ = 0;
};

}  // namespace

Result<Pointer> parse_regex(std::string_view pattern) { return RegexParser(pattern).all(); }

}  // namespace sluice
