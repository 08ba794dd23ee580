#include "report/markdown.h"

#include <cstdio>

namespace sluice::bench {

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string us_text(double us) { return printed(us < 10 ? "%.2f" : us < 100 ? "%.1f" : "%.0f", us); }

std::string line_of(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + cell + " |";
  return out + "\n";
}

std::string rule_of(size_t columns, size_t left) {
  std::string out = "|";
  for (size_t i = 0; i < columns; ++i) out += i < left ? "---|" : "--:|";
  return out + "\n";
}

std::string joined(const std::set<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
  return out;
}

}  // namespace sluice::bench
