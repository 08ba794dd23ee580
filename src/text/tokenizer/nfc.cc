#include "text/tokenizer/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace sluice {
namespace {

#include "text/tokenizer/nfc_table.inc"

// Code points below U+0300 are not marks and never compose with their predecessor. All their UTF-8 bytes are less than the first byte of U+0300.
constexpr uint8_t kFirstMarkByte = 0xcc;
constexpr char32_t kHangul = 0xac00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11a7;
constexpr char32_t kLeadings = 19, kVowels = 21, kTrailings = 28,
                   kSyllables = kLeadings * kVowels * kTrailings;

struct Mark {
  char32_t point = 0;
  int order = 0;  // combining class; 0: a starter
};

class Tables {
 public:
  Tables() {
    for (size_t i = 0; i < std::size(kDecompositions); i += 2 + kDecompositions[i + 1])
      decompositions_.emplace(kDecompositions[i], &kDecompositions[i + 1]);
    for (size_t i = 0; i < std::size(kCompositions); i += 3)
      compositions_.emplace(pair(kCompositions[i], kCompositions[i + 1]), kCompositions[i + 2]);
  }
  // Appends the decomposition of a code point.
  void decompose(char32_t c, std::vector<Mark>* out) const {
    if (c >= kHangul && c < kHangul + kSyllables) {
      const char32_t s = c - kHangul;
      out->push_back({kLeading + s / (kVowels * kTrailings)});
      out->push_back({kVowel + s / kTrailings % kVowels});
      if (s % kTrailings) out->push_back({kTrailing + s % kTrailings});
      return;
    }
    const auto found = decompositions_.find(c);
    if (found == decompositions_.end()) return out->push_back({c, order(c)});
    for (char32_t i = 1; i <= *found->second; ++i)
      out->push_back({found->second[i], order(found->second[i])});
  }
  // The composition of a pair; 0: the pair does not compose.
  char32_t compose(char32_t a, char32_t b) const {
    if (a >= kLeading && a < kLeading + kLeadings && b >= kVowel && b < kVowel + kVowels)
      return kHangul + ((a - kLeading) * kVowels + b - kVowel) * kTrailings;
    const bool is_open = a >= kHangul && a < kHangul + kSyllables && (a - kHangul) % kTrailings == 0;
    if (is_open && b > kTrailing && b < kTrailing + kTrailings) return a + b - kTrailing;
    const auto found = compositions_.find(pair(a, b));
    return found == compositions_.end() ? 0 : found->second;
  }

 private:
  static uint64_t pair(char32_t a, char32_t b) { return uint64_t{a} << 32 | b; }
  static int order(char32_t c) {
    size_t low = 0, high = std::size(kClasses) / 3;  // ranges of first, last and class
    while (low < high) {
      const size_t mid = (low + high) / 2;
      if (c > kClasses[mid * 3 + 1])
        low = mid + 1;
      else
        high = mid;
    }
    return low < std::size(kClasses) / 3 && c >= kClasses[low * 3] ? static_cast<int>(kClasses[low * 3 + 2])
                                                                   : 0;
  }
  // By code point: a pointer to the length of its decomposition, which the decomposition follows.
  std::unordered_map<char32_t, const char32_t*> decompositions_;
  std::unordered_map<uint64_t, char32_t> compositions_;
};

const Tables& tables() {
  static const Tables t;
  return t;
}

// Sorts the marks between any two starters by combining class.
void sort_marks(std::vector<Mark>* text) {
  for (auto begin = text->begin(); begin != text->end();) {
    const auto is_mark = [](const Mark& m) { return m.order != 0; };
    begin = std::find_if(begin, text->end(), is_mark);
    const auto end = std::find_if_not(begin, text->end(), is_mark);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.order < b.order; });
    begin = end;
  }
}

// Composes each code point with the last starter before it, unless a mark of the same or a higher class is between them.
void compose(std::vector<Mark>* text) {
  size_t out = 0, starter = 0;
  bool has_starter = false;
  int last = -1;  // highest class since the starter; -1: nothing between
  for (const Mark m : *text) {
    const char32_t whole =
        has_starter && last < m.order ? tables().compose((*text)[starter].point, m.point) : 0;
    if (whole) {
      (*text)[starter].point = whole;
      continue;
    }
    if (m.order == 0) {
      starter = out;
      has_starter = true;
      last = -1;
    } else {
      last = m.order;
    }
    (*text)[out++] = m;
  }
  text->resize(out);
}

}  // namespace

std::optional<std::string> nfc(std::string_view text) {
  const auto is_below_marks = [](char c) { return static_cast<uint8_t>(c) < kFirstMarkByte; };
  if (std::all_of(text.begin(), text.end(), is_below_marks)) return {};
  std::string out;
  std::vector<Mark> run;
  bool changed = false;
  const auto flush = [&](std::string_view original) {
    sort_marks(&run);
    compose(&run);
    const size_t before = out.size();
    for (const Mark& m : run) append_utf8(m.point, &out);
    changed = changed || std::string_view(out).substr(before) != original;
    run.clear();
  };
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    const size_t bytes = static_cast<size_t>(step.bytes);
    if (step.valid) {
      tables().decompose(step.code_point, &run);
    } else {
      flush(text.substr(begin, at - begin));
      out += text.substr(at, bytes);
      begin = at + bytes;
    }
    at += bytes;
  }
  flush(text.substr(begin));
  return changed ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace sluice
