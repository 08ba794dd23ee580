#include "grammar/ebnf_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"

namespace sluice {
namespace {

using Node = Regex::Node;
using Kind = Node::Kind;
using Pointer = Node::Pointer;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}
bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

Pointer chars(CharSet set) {
  Node out{.kind = Kind::kChars};
  out.chars[0] = out.chars[1] = std::move(set);
  return shared(std::move(out));
}

class EbnfParser {
 public:
  explicit EbnfParser(std::string_view text) : text_(text) {}

  Result<EbnfRules> all() {
    blanks();
    while (error_.empty() && at_ < text_.size()) rule();
    for (const auto& [name, where] : used_)
      if (error_.empty() && !rules_.contains(name))
        error_ = "the rule '" + printable(name) + "', which is used at " + where + " and not defined";
    if (error_.empty() && !rules_.contains("root")) error_ = "no rule 'root'";
    if (!error_.empty()) return invalid(error_);
    return std::move(rules_);
  }

 private:
  char ahead(size_t n = 0) const { return at_ + n < text_.size() ? text_[at_ + n] : '\0'; }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  std::string here() const {
    const auto line =
        1 + std::count(text_.begin(),
                       text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n');
    return "line " + std::to_string(line);
  }
  void fail(const std::string& found) {
    if (error_.empty()) error_ = found + " at " + here();
  }

  // Skips blanks, line breaks and comments.
  void blanks() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string name() {
    const size_t from = at_;
    while (is_name(ahead())) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }
  // Whether a rule begins here: a name and "::=".
  bool begins_rule() {
    const size_t from = at_;
    const bool named = !name().empty();
    blanks();
    const bool out = named && next_is("::=");
    at_ = from;
    return out;
  }

  void rule() {
    const std::string called = name();
    blanks();
    if (called.empty() || !next_is("::="))
      return fail("'" + printable(valid_utf8(text_.substr(at_, 12))) +
                  "' instead of a rule such as 'name ::= ...',");
    at_ += 3;
    blanks();
    Pointer body = choice(0);
    if (!error_.empty()) return;
    if (at_ < text_.size() && !begins_rule())
      return fail("'" + printable(valid_utf8(text_.substr(at_, 12))) + "', which was not expected,");
    if (!rules_.emplace(called, std::move(body)).second)
      fail("the rule '" + printable(called) + "' a second time");
  }

  Pointer choice(int depth) {
    if (depth > kGroupDepthMax) {
      fail("more than " + std::to_string(kGroupDepthMax) + " levels of groups");
      return shared({});
    }
    Node out{.kind = Kind::kChoice};
    out.parts.push_back(sequence(depth));
    while (error_.empty() && ahead() == '|') {
      ++at_;
      blanks();
      out.parts.push_back(sequence(depth));
    }
    return out.parts.size() == 1 ? out.parts.front() : shared(std::move(out));
  }

  Pointer sequence(int depth) {
    Node out;
    while (error_.empty() && at_ < text_.size() && ahead() != '|' && ahead() != ')') {
      if (is_name(ahead()) && begins_rule()) break;
      Pointer part = atom(depth);
      if (!error_.empty()) break;
      blanks();
      out.parts.push_back(repeated(std::move(part)));
      blanks();
    }
    return shared(std::move(out));
  }

  Pointer repeated(Pointer part) {
    while (error_.empty()) {
      int64_t least = 0, most = -1;
      const char c = ahead();
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        least = c == '+' ? 1 : 0;
        most = c == '?' ? 1 : -1;
      } else if (c == '{') {
        ++at_;
        const auto first = number();
        least = first.value_or(0);
        most = first.value_or(-1);
        if (ahead() == ',') {
          ++at_;
          most = number().value_or(-1);
        } else if (!first) {
          fail("a '{' without a number");
        }
        if (ahead() != '}') fail("a '{' without its '}'");
        ++at_;
        if (most >= 0 && most < least) fail("a repetition whose bounds are in the wrong order");
      } else {
        return part;
      }
      blanks();
      part = shared({.kind = Kind::kRepeat, .parts = {std::move(part)}, .least = least, .most = most});
    }
    return part;
  }

  std::optional<int64_t> number() {
    blanks();
    std::optional<int64_t> out;
    for (; ahead() >= '0' && ahead() <= '9'; ++at_)
      out = std::min(kRepeatCountMax, 10 * out.value_or(0) + (ahead() - '0'));
    blanks();
    return out;
  }

  Pointer atom(int depth) {
    const char c = ahead();
    if (c == '"' || c == '\'') return literal(c);
    if (c == '[') return char_class();
    if (c == '.') {
      ++at_;
      return chars(CharSet::all());
    }
    if (c == '(') {
      const size_t start = at_++;
      if (ahead() == '=') fail("a look-ahead, which is not supported,");
      blanks();
      Pointer inside = choice(depth + 1);
      if (error_.empty() && ahead() != ')') {
        at_ = start;
        fail("a '(' without its ')'");
      }
      ++at_;
      return inside;
    }
    if (!is_name(c)) {
      fail("'" + printable(valid_utf8(text_.substr(at_, 12))) + "', which was not expected,");
      return shared({});
    }
    Node out{.kind = Kind::kReference};
    const std::string where = here();
    out.name = name();
    used_.try_emplace(out.name, where);
    return shared(std::move(out));
  }

  // Reads one character of a literal or class, including escapes.
  char32_t character() {
    if (ahead() != '\\') {
      const Utf8Step step = utf8_step(text_.substr(at_));
      if (!step.valid) fail("bytes that are no UTF-8");
      at_ += static_cast<size_t>(step.bytes);
      return step.code_point;
    }
    const char c = ahead(1);
    at_ += 2;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'b':
        return '\b';
      case 'v':
        return '\v';
      case '0':
        return 0;
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      default:
        break;
    }
    if (is_name(c) && c != '-' && c != '.' && c != '_')
      fail(std::string("an escape that is not known, '\\") + c + "',");
    if (at_ > text_.size()) fail("a backslash at the end");
    return static_cast<unsigned char>(c);
  }
  char32_t hex(int digits) {
    char32_t out = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = ahead();
      if (!is_hex(c)) {
        fail("an escape with too few hexadecimal digits");
        return 0;
      }
      out = 16 * out + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (out > 0x10ffff || (out >= 0xd800 && out < 0xe000)) fail("an escape that is no code point");
    return out;
  }

  Pointer literal(char quote) {
    const size_t start = at_++;
    Node out;
    while (error_.empty() && at_ < text_.size() && ahead() != quote) {
      const char32_t c = character();
      out.parts.push_back(chars({{c, c}}));
    }
    if (error_.empty() && at_ >= text_.size()) {
      at_ = start;
      fail("an unclosed literal");
    }
    ++at_;
    return shared(std::move(out));
  }

  Pointer char_class() {
    const size_t start = at_++;
    const bool negative = ahead() == '^';
    if (negative) ++at_;
    CharSet set;
    while (error_.empty() && at_ < text_.size() && ahead() != ']') {
      const char32_t first = character();
      char32_t last = first;
      if (ahead() == '-' && ahead(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        last = character();
      }
      if (last < first) fail("a range whose ends are in the wrong order");
      set.add(first, last);
    }
    if (error_.empty() && at_ >= text_.size()) {
      at_ = start;
      fail("a '[' without its ']'");
    }
    ++at_;
    return chars(negative ? set.complement() : set);
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string error_;
  EbnfRules rules_;
  std::map<std::string, std::string> used_;  // by rule name: the position of its first reference
};

}  // namespace

Result<EbnfRules> parse_ebnf(std::string_view text) { return EbnfParser(text).all(); }

}  // namespace sluice
