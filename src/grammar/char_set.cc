#include "grammar/char_set.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "base/utf8.h"

namespace sluice {
namespace {

constexpr char32_t kLast = 0x10ffff, kSurrogates = 0xd800, kSurrogatesEnd = 0xdfff;

CharSet ascii_of(char lower) {
  if (lower == 'd') return {{'0', '9'}};
  if (lower == 'w') return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return {{'\t', '\r'}, {' ', ' '}};
}

// Characters that some validator includes in \s in addition to ASCII blanks. (For \d and \w, class_of_escape() adds every character beyond ASCII.)
CharSet blanks_of_unicode() {
  return {{0x1c, 0x1f},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
          {0x180e, 0x180e}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
          {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
}

// Properties of ECMAScript that are true or false for each character.
constexpr std::string_view kBinary[] = {"ASCII",
                                        "ASCII_Hex_Digit",
                                        "Alphabetic",
                                        "Dash",
                                        "Emoji",
                                        "Emoji_Component",
                                        "Emoji_Modifier",
                                        "Emoji_Modifier_Base",
                                        "Emoji_Presentation",
                                        "Extended_Pictographic",
                                        "Hex_Digit",
                                        "ID_Continue",
                                        "ID_Start",
                                        "Ideographic",
                                        "Lowercase",
                                        "Math",
                                        "Regional_Indicator",
                                        "Uppercase",
                                        "White_Space",
                                        "XID_Continue",
                                        "XID_Start"};

// "sc:Greek" or "scx:Greek", as PCRE2 names scripts.
bool is_script(std::string_view name) {
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos || (name.substr(0, colon) != "sc" && name.substr(0, colon) != "scx"))
    return false;
  const std::string_view script = name.substr(colon + 1);
  return !script.empty() && script[0] >= 'A' && script[0] <= 'Z' && std::ranges::all_of(script, [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  });
}

}  // namespace

CharSet::CharSet(std::initializer_list<Range> ranges) : ranges_(ranges) { normalize(); }
CharSet CharSet::all() { return CharSet().complement(); }

void CharSet::add(char32_t first, char32_t last) {
  if (first > last) return;
  if (first < kSurrogates) ranges_.push_back({first, std::min<char32_t>(last, kSurrogates - 1)});
  if (last > kSurrogatesEnd)
    ranges_.push_back({std::max<char32_t>(first, kSurrogatesEnd + 1), std::min(last, kLast)});
  normalize();
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CharSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return a.first != b.first ? a.first < b.first : a.last < b.last;
  });
  std::vector<Range> out;
  for (const Range& r : ranges_) {
    if (!out.empty() && r.first <= out.back().last + 1)
      out.back().last = std::max(out.back().last, r.last);
    else
      out.push_back(r);
  }
  ranges_ = std::move(out);
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t from = 0;
  std::vector<Range> gaps;
  for (const Range& r : ranges_) {
    if (r.first > from) gaps.push_back({from, r.first - 1});
    from = r.last + 1;
  }
  if (from <= kLast) gaps.push_back({from, kLast});
  for (const Range& gap : gaps) {
    if (gap.first < kSurrogates)
      out.ranges_.push_back({gap.first, std::min<char32_t>(gap.last, kSurrogates - 1)});
    if (gap.last > kSurrogatesEnd)
      out.ranges_.push_back({std::max<char32_t>(gap.first, kSurrogatesEnd + 1), gap.last});
  }
  return out;
}

CharSet CharSet::minus(const CharSet& other) const {
  CharSet out = complement();
  out.add(other);
  return out.complement();
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const Range& r) { return r.first <= c && c <= r.last; });
}

Bound opposite(Bound bound) { return bound == Bound::kInner ? Bound::kOuter : Bound::kInner; }

CharSet class_of_escape(char letter, Bound bound) {
  if (letter == 'D' || letter == 'W' || letter == 'S')
    return class_of_escape(static_cast<char>(letter - 'A' + 'a'), opposite(bound)).complement();
  CharSet out = ascii_of(letter);
  if (bound == Bound::kOuter) {
    if (letter == 's')
      out.add(blanks_of_unicode());
    else
      out.add(0x80, kLast);
  }
  return out;
}

CharSet class_of_dot(Bound bound) {
  CharSet ends = {{'\n', '\n'}};
  if (bound == Bound::kInner) ends.add({{'\r', '\r'}, {0x2028, 0x2029}});
  return ends.complement();
}

CharSet class_of_property(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, CharSet, std::less<>> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(name); found != known.end()) return found->second;
  // Checked here because PCRE2 also accepts names with blanks and with other letter cases.
  const bool second = name.size() == 1 || (name.size() == 2 && name[1] >= 'a' && name[1] <= 'z');
  const bool is_category =
      (second || name == "LC") && std::string_view("CLMNPSZ").find(name[0]) != std::string_view::npos;
  if (!is_category && !is_script(name) && std::ranges::find(kBinary, name) == std::end(kBinary)) return {};
  const std::string pattern = "\\p{" + std::string(name) + "}";
  int error = 0;
  size_t where = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr);
  if (code == nullptr) return {};
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  CharSet out;
  char32_t begin = 0;
  bool inside = false;
  for (char32_t c = 0; c <= kLast + 1; ++c) {
    const bool scalar = c <= kLast && (c < kSurrogates || c > kSurrogatesEnd);
    std::string text;
    if (scalar) append_utf8(c, &text);
    const bool member = scalar && pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                              PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match, nullptr) > 0;
    if (member && !inside) begin = c;
    if (!member && inside) out.ranges_.push_back({begin, c - 1});
    inside = member;
  }
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  known.emplace(name, out);
  return out;
}

}  // namespace sluice
