#include "base/utf8.h"

namespace sluice {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// What a first byte implies: the length of the code point, the bits of the first byte, and the range of the
// second byte. The range excludes overlong forms, surrogates and values above U+10FFFF.
struct Lead {
  int bytes;
  char32_t bits;
  uint8_t second_min, second_max;
};

Lead lead_of(uint8_t b) {
  if (b < 0x80) return {1, b, 0, 0};
  if (b < 0xc2) return {0, 0, 0, 0};
  if (b < 0xe0) return {2, b & 0x1fu, 0x80, 0xbf};
  if (b < 0xf0)
    return {3, b & 0x0fu, static_cast<uint8_t>(b == 0xe0 ? 0xa0 : 0x80),
            static_cast<uint8_t>(b == 0xed ? 0x9f : 0xbf)};
  if (b < 0xf5)
    return {4, b & 0x07u, static_cast<uint8_t>(b == 0xf0 ? 0x90 : 0x80),
            static_cast<uint8_t>(b == 0xf4 ? 0x8f : 0xbf)};
  return {0, 0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.bytes == 0) return {.bytes = 1};
  char32_t code_point = lead.bits;
  for (int i = 1; i < lead.bytes; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {.bytes = i, .truncated = true};
    const uint8_t b = static_cast<uint8_t>(text[static_cast<size_t>(i)]);
    const uint8_t minimum = i == 1 ? lead.second_min : 0x80, maximum = i == 1 ? lead.second_max : 0xbf;
    if (b < minimum || b > maximum) return {.bytes = i};
    code_point = code_point << 6 | (b & 0x3fu);
  }
  return {.code_point = code_point, .bytes = lead.bytes, .valid = true};
}

void append_utf8(char32_t c, std::string* out) {
  const auto tail = [&](int shift) { out->push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3f))); };
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | c >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xf0 | c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string joined;
  if (!held_.empty()) {
    joined = std::move(held_);
    joined += bytes;
    bytes = joined;
    held_.clear();
  }
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.truncated) {
      held_ = bytes;
      break;
    }
    if (step.valid)
      out += bytes.substr(0, static_cast<size_t>(step.bytes));
    else
      append_utf8(kReplacement, &out);
    bytes.remove_prefix(static_cast<size_t>(step.bytes));
  }
  return out;
}

bool Utf8Stream::is_cut_by(std::string_view bytes) const {
  if (held_.empty() || bytes.empty()) return false;
  return utf8_step(held_ + bytes.front()).bytes == static_cast<int>(held_.size());
}

std::string Utf8Stream::finish() {
  std::string out;
  if (!held_.empty()) append_utf8(kReplacement, &out);
  held_.clear();
  return out;
}

size_t valid_utf8_bytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!step.valid) break;
    at += static_cast<size_t>(step.bytes);
  }
  return at;
}

std::string valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string out = stream.push(bytes);
  return out += stream.finish();
}

}  // namespace sluice
