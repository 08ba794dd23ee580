#include "base/printable.h"

#include <charconv>
#include <system_error>

namespace sluice {
namespace {

void escape(unsigned char byte, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  if (byte == '\n') return void(*out += "\\n");
  if (byte == '\t') return void(*out += "\\t");
  if (byte == '\r') return void(*out += "\\r");
  *out += "\\x";
  *out += kHex[byte >> 4];
  *out += kHex[byte & 15];
}

}  // namespace

std::string printable(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xc2 && next >= 0x80 && next <= 0x9f) {  // U+0080 to U+009F: 8-bit terminal commands
      escape(next, &out);
      ++i;
    } else if (lines == Lines::kMany && (byte == '\n' || byte == '\t')) {
      out += text[i];
    } else if (byte < 0x20 || byte == 0x7f) {
      escape(byte, &out);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string shortened(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  constexpr std::string_view kDots = "...";
  size_t end = bytes - kDots.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)).append(kDots);
}

std::string number_text(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return error == std::errc() ? std::string(buffer, end) : "?";
}

std::string scientific_text(double value) {
  char buffer[32];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  return error == std::errc() ? std::string(buffer, end) : "?";
}

}  // namespace sluice
